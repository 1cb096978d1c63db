"""Which clock each time is read on: true time, a machine's session, a GPU's own drifting clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.simulate.spec import CaptureSpec

Ints = npt.NDArray[np.int64]

UTC_ORIGIN_NS = 1_780_000_000_000_000_000
"""UTC of true time 0."""


@dataclass(frozen=True)
class RankClock:
    """One GPU's clock and its file's session.

    A time that the export shows is ``true - session_start + offset + drift_ppm * 1e-6 * (true - middle) + jumps``;
    host calls of the same file show ``true - session_start``.

    Attributes:
        rank: the rank.
        session_start_ns: true time at which the file's session began.
        offset_ns: GPU clock minus the host's, at `middle_ns`.
        drift_ppm: how much faster it runs.
        middle_ns: true time where the offset holds.
        jumps: (true time, nanoseconds) at which the clock jumped.
        utc_error_ns: recorded minus true UTC of the session's start.
        host: index of the machine.
        boot_ns: true time 0 on the machine's system clock.
    """

    rank: int
    session_start_ns: int
    offset_ns: int
    drift_ppm: float
    middle_ns: int
    jumps: tuple[tuple[int, int], ...]
    utc_error_ns: int
    host: int
    boot_ns: int

    def to_local(self, true_ns: Ints | int) -> Ints:
        """Times as the export shows GPU rows."""
        times = np.asarray(true_ns, np.int64)
        local = times - self.session_start_ns + self.offset_ns
        if self.drift_ppm:
            local = local + np.rint((times - self.middle_ns) * (self.drift_ppm * 1e-6)).astype(np.int64)
        for at_ns, jump_ns in self.jumps:
            local = local + np.where(times >= at_ns, jump_ns, 0)
        return np.asarray(local, np.int64)

    def to_session(self, true_ns: Ints | int) -> Ints:
        """Times as the export shows host rows."""
        return np.asarray(true_ns, np.int64) - self.session_start_ns

    @property
    def utc_ns(self) -> int:
        """The session's start as the export records it."""
        return UTC_ORIGIN_NS + self.session_start_ns + self.utc_error_ns

    @property
    def system_clock_ns(self) -> int:
        """The machine's clock at the session's start."""
        return self.boot_ns + self.session_start_ns


def rank_clocks(spec: CaptureSpec, first_ns: int, last_ns: int, *, one_file: bool) -> tuple[RankClock, ...]:
    """The clocks of all ranks; independent of everything else that is random."""
    rng = np.random.default_rng([spec.seed, 71])
    ranks = spec.ranks
    offsets = rng.integers(-spec.gpu_offset_max_ns, spec.gpu_offset_max_ns + 1, ranks)
    drifts = rng.uniform(-1.0, 1.0, ranks) * spec.gpu_drift_max_ppm
    sessions = rng.integers(0, spec.session_spread_ns + 1, ranks)
    errors = rng.integers(-spec.utc_error_max_ns, spec.utc_error_max_ns + 1, ranks)
    boots = rng.integers(10**15, 8 * 10**15, ranks)
    if spec.gpu_offset_ns is not None:
        offsets = np.array(spec.per_rank("gpu_offset_ns"), np.int64)
    if spec.gpu_drift_ppm is not None:
        drifts = np.array(spec.per_rank("gpu_drift_ppm"))
    if spec.utc_error_ns is not None:
        errors = np.array(spec.per_rank("utc_error_ns"), np.int64)
    length = last_ns - first_ns
    clocks = []
    for rank in range(ranks):
        file = 0 if one_file else rank
        host = 0 if one_file else rank // spec.ranks_per_host
        clocks.append(
            RankClock(
                rank=rank,
                session_start_ns=0 if one_file else int(sessions[file]),
                offset_ns=int(offsets[rank]),
                drift_ppm=float(drifts[rank]),
                middle_ns=first_ns + length // 2,
                jumps=tuple(
                    (first_ns + int(jump.at_frac * length), jump.jump_ns)
                    for jump in spec.gpu_jumps
                    if jump.rank == rank
                ),
                utc_error_ns=int(errors[file]),
                host=host,
                boot_ns=int(boots[host]),
            )
        )
    return tuple(clocks)
