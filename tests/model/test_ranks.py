"""Which GPU is which rank: every kind of evidence, and what looks like evidence and is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.running import edit, refused, tracelens
from tracelens.errors import RankError
from tracelens.simulate import Copy, Env, GraphTrace, Kernel, Memset, Process, Range, Thread, write_events
from tracelens.simulate import Gpu as GpuRow
from tracelens.trace import LoadedTrace, Options, open_trace

UTC = 1_780_000_000_000_000_000


def loaded(paths: Path | Sequence[Path], **options: Any) -> LoadedTrace:
    several = [paths] if isinstance(paths, Path) else list(paths)
    return open_trace([str(path) for path in several], Options(**options))


def ranks_of(paths: Path | Sequence[Path], **options: Any) -> tuple[dict[int, tuple[str, int, int]], str]:
    """rank -> (file, pid, device), and what numbered them."""
    with loaded(paths, **options) as trace:
        rows = trace.db.execute(
            "SELECT rank, x.path, p.pid, device, rank_source FROM rank JOIN export x USING (export) JOIN process p USING (process)"
            " ORDER BY rank"
        ).fetchall()
    (source,) = {row[4] for row in rows}
    return {row[0]: (Path(row[1]).stem, row[2], row[3]) for row in rows}, source


def notices(paths: Path | Sequence[Path], **options: Any) -> dict[str, str]:
    with loaded(paths, **options) as trace:
        return {one.code: f"{one.severity}: {one.message}" for one in trace.notices}


def busy(pid: int = 1000, device: int = 0, at: int = 1_000, **more: Any) -> Kernel:
    return Kernel("gemm", at, at + 100_000, pid=pid, device=device, **more)


def four(tmp_path: Path, *rows: Any, **more: Any) -> Path:
    """Four processes, one GPU each."""
    kernels = [busy(100 + rank, rank, at=1_000 * (4 - rank)) for rank in range(4)]
    return write_events([*kernels, *rows], tmp_path / "tp8.sqlite", **more)


class TestOrderOfEvidence:
    def test_tp8_in_a_file_name_is_not_rank_8(self, tmp_path: Path) -> None:
        assert ranks_of(write_events([busy()], tmp_path / "tp8.sqlite")) == ({0: ("tp8", 1000, 0)}, "device")

    def test_a_rank_in_the_name_of_a_file_with_one_gpu(self, tmp_path: Path) -> None:
        paths = [write_events([busy()], tmp_path / f"run_rank{rank}.sqlite") for rank in (9, 10, 0)]
        found, source = ranks_of(paths)
        assert (found, source) == ({rank: (f"run_rank{rank}", 1000, 0) for rank in (0, 9, 10)}, "file-name")

    @pytest.mark.parametrize("name", ["rank7", "rank_7", "rank-7", "Rank7", "x.rank07.nsys"])
    def test_spellings_of_a_rank_in_a_name(self, tmp_path: Path, name: str) -> None:
        assert list(ranks_of(write_events([busy()], tmp_path / f"{name}.sqlite"))[0]) == [7]

    def test_a_rank_in_the_name_of_a_file_with_two_gpus_is_none(self, tmp_path: Path) -> None:
        path = write_events([busy(1, 0), busy(2, 1)], tmp_path / "rank7.sqlite")
        assert ranks_of(path) == ({0: ("rank7", 1, 0), 1: ("rank7", 2, 1)}, "device")

    @pytest.mark.parametrize("name", ["rank99999999999999999999", "rank1048576", "rank"])
    def test_a_number_that_no_rank_bears(self, tmp_path: Path, name: str) -> None:
        assert ranks_of(write_events([busy()], tmp_path / f"{name}.sqlite"))[1] == "device"

    def test_device_ordinals_are_a_last_resort(self, tmp_path: Path) -> None:
        """The kernels start in the order 3, 2, 1, 0."""
        assert ranks_of(four(tmp_path)) == ({rank: ("tp8", 100 + rank, rank) for rank in range(4)}, "device")

    def test_one_process_that_drives_all_devices(self, tmp_path: Path) -> None:
        path = write_events([busy(7, device) for device in (2, 0, 3, 1)], tmp_path / "x.sqlite")
        assert ranks_of(path) == ({rank: ("x", 7, rank) for rank in range(4)}, "device")

    def test_four_processes_that_all_see_device_0(self, tmp_path: Path) -> None:
        """CUDA_VISIBLE_DEVICES gives every process ordinal 0: ranks by first kernel, and a word about it."""
        path = write_events([busy(100 + n, 0, at=1_000 * (4 - n)) for n in range(4)], tmp_path / "x.sqlite")
        found, source = ranks_of(path)
        assert (found, source) == ({n: ("x", 103 - n, 0) for n in range(4)}, "first-kernel")
        assert "device ordinals" in notices(path)["rank-evidence-unusable"]

    def test_four_files_that_all_see_device_0(self, tmp_path: Path) -> None:
        """Sessions begin at different times: the order is that of UTC, not of the files' own time 0."""
        paths = [
            write_events([busy(at=1_000)], tmp_path / f"part_{name}.sqlite", utc_ns=UTC + begun)
            for name, begun in (("a", 30_000), ("b", 10_000), ("c", 20_000))
        ]
        found, source = ranks_of(paths)
        assert ([file for file, _, _ in found.values()], source) == (["part_b", "part_c", "part_a"], "first-kernel")

    def test_titles_come_before_names_and_devices(self, tmp_path: Path) -> None:
        titles = [Process(f"VLLM::Worker_TP{3 - rank}", 100 + rank) for rank in range(4)]
        path = four(tmp_path, *titles)
        assert ranks_of(path) == ({rank: ("tp8", 103 - rank, 3 - rank) for rank in range(4)}, "title")

    def test_titles_of_threads(self, tmp_path: Path) -> None:
        titles = [Thread(f"sglang::scheduler_TP{3 - rank}", 100 + rank) for rank in range(4)]
        others = [Thread("python3", 100, tid=5), Thread("pt_main_thread", 101, tid=6)]
        assert ranks_of(four(tmp_path, *titles, *others))[0][0] == ("tp8", 103, 3)

    def test_the_main_threads_title_counts(self, tmp_path: Path) -> None:
        """A worker that holds a thread named after another one."""
        titles = [Thread(f"Worker_TP{rank}", 100 + rank) for rank in range(4)]
        path = four(tmp_path, *titles, Thread("Worker_TP3", 100, tid=5), Thread("Worker_TP0", 103, tid=6))
        assert ranks_of(path)[0] == {rank: ("tp8", 100 + rank, rank) for rank in range(4)}

    def test_dp_pp_and_tp_parts(self, tmp_path: Path) -> None:
        """(dp x PP + pp) x TP + tp, sizes from the highest part seen."""
        parts = [(dp, pp, tp) for dp in range(2) for pp in range(2) for tp in range(2)]
        rows: list[Any] = []
        for number, (dp, pp, tp) in enumerate(parts):
            rows += [busy(100 + number, number), Process(f"VLLM::Worker_DP{dp}_PP{pp}_TP{tp}", 100 + number)]
        path = write_events(rows[::-1], tmp_path / "x.sqlite")
        found, source = ranks_of(path)
        assert (found, source) == ({rank: ("x", 100 + rank, rank) for rank in range(8)}, "title")
        with loaded(path) as trace:
            kept = trace.db.execute("SELECT dp, pp, tp FROM rank ORDER BY rank").fetchall()
        assert kept == parts

    def test_a_replica_without_its_last_workers_keeps_its_numbers_by_the_expected_size(self, tmp_path: Path) -> None:
        """DP 0 and 1 with TP 0 and 1 seen: TP is 2 by what is seen, 4 by --expect-ranks 8."""
        rows: list[Any] = []
        for number, (dp, tp) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
            rows += [busy(100 + number, number), Process(f"Worker_DP{dp}_TP{tp}", 100 + number)]
        path = write_events(rows, tmp_path / "x.sqlite")
        assert list(ranks_of(path)[0]) == [0, 1, 2, 3]
        assert list(ranks_of(path, expect_ranks=8)[0]) == [0, 1, 4, 5]

    def test_tp_0_1_3_are_ranks_0_1_3(self, tmp_path: Path) -> None:
        rows: list[Any] = []
        for device, tp in enumerate((0, 1, 3)):
            rows += [busy(100 + device, device), Process(f"VLLM::Worker_TP{tp}", 100 + device)]
        path = write_events(rows, tmp_path / "x.sqlite")
        assert list(ranks_of(path)[0]) == [0, 1, 3]
        assert "3 of 4 ranks present; missing: 2" in notices(path, expect_ranks=4)["ranks-missing"]

    def test_a_title_that_two_workers_bear_is_told(self, tmp_path: Path) -> None:
        rows: list[Any] = [busy(1, 0), busy(2, 1), Process("Worker_TP0", 1), Process("Worker_TP0", 2)]
        path = write_events(rows, tmp_path / "x.sqlite")
        assert ranks_of(path)[1] == "device"
        assert "titles" in notices(path)["rank-evidence-unusable"]
        assert "rank 0" in notices(path)["rank-evidence-unusable"]

    def test_two_exports_that_claim_one_rank(self, tmp_path: Path) -> None:
        paths = [
            write_events([busy(), Process("Worker_TP0", 1000)], tmp_path / f"{name}.sqlite") for name in ("a_1", "a_2")
        ]
        assert ranks_of(paths)[1] == "first-kernel"
        assert "a_1.sqlite" in notices(paths)["rank-evidence-unusable"]
        assert "a_2.sqlite" in notices(paths)["rank-evidence-unusable"]


class TestNccl:
    def init(self, pid: int, rank: int, size: int, comm: int | None = 77, at: int = 10, **more: Any) -> Range:
        first = {} if comm is None else {"NCCL communicator ID": comm}
        payload = first | {"No. of ranks": size, "Rank": rank, "CUDA device": 0}
        return Range("ncclCommInitRank", at, at + 5, pid=pid, domain="NCCL", registered=True, payload=payload, **more)

    @pytest.mark.parametrize("how", ["json", "binary", "both"])
    def test_the_rank_in_a_communicator_of_all(self, tmp_path: Path, how: str) -> None:
        """It beats titles: nccl says 3 - n, titles say n."""
        inits = [self.init(100 + n, 3 - n, 4, payload_as=how) for n in range(4)]
        titles = [Process(f"Worker_TP{n}", 100 + n) for n in range(4)]
        path = four(tmp_path, *inits, *titles)
        assert ranks_of(path) == ({n: ("tp8", 103 - n, 3 - n) for n in range(4)}, "nccl")

    def test_a_communicator_of_some_says_nothing(self, tmp_path: Path) -> None:
        """Two tensor-parallel pairs: each process is rank 0 or 1 of two."""
        inits = [self.init(100 + n, n % 2, 2, comm=n // 2) for n in range(4)]
        assert ranks_of(four(tmp_path, *inits))[1] == "device"
        (tmp_path / "tp8.sqlite").unlink()
        path = four(tmp_path, *(self.init(100 + n, n % 2, 2, comm=None) for n in range(4)))
        assert ranks_of(path)[1] == "device"
        assert "rank-evidence-unusable" not in notices(path)

    def test_a_communicator_of_more_ranks_than_were_captured(self, tmp_path: Path) -> None:
        """Two of eight: ranks 6 and 3, whatever their ordinals."""
        rows = [busy(1, 0), busy(2, 1), self.init(1, 6, 8), self.init(2, 3, 8)]
        path = write_events(rows, tmp_path / "x.sqlite")
        assert ranks_of(path) == ({3: ("x", 2, 1), 6: ("x", 1, 0)}, "nccl")

    def test_of_two_communicators_of_all_the_first_made_counts(self, tmp_path: Path) -> None:
        """The world (id 900, made first) and a permuted one (id 5)."""
        inits = [self.init(100 + n, n, 4, comm=900, at=10) for n in range(4)]
        inits += [self.init(100 + n, (n + 1) % 4, 4, comm=5, at=20) for n in range(4)]
        assert ranks_of(four(tmp_path, *inits)) == ({n: ("tp8", 100 + n, n) for n in range(4)}, "nccl")

    def test_without_ids_two_communicators_of_all_say_nothing(self, tmp_path: Path) -> None:
        inits = [self.init(100 + n, n, 4, comm=None) for n in range(4)]
        assert ranks_of(four(tmp_path, *inits))[1] == "nccl"
        inits += [self.init(100 + n, (n + 1) % 4, 4, comm=None, at=20) for n in range(4)]
        (tmp_path / "tp8.sqlite").unlink()
        assert ranks_of(four(tmp_path, *inits))[1] == "device"

    def test_a_process_with_two_devices_cannot_be_told_by_it(self, tmp_path: Path) -> None:
        rows = [busy(1, 0), busy(1, 1), self.init(1, 0, 2), self.init(1, 1, 2)]
        assert ranks_of(write_events(rows, tmp_path / "x.sqlite"))[1] == "device"

    def test_ranks_that_no_communicator_has(self, tmp_path: Path) -> None:
        inits = [self.init(100 + n, n + 4, 4) for n in range(4)]
        assert ranks_of(four(tmp_path, *inits))[1] == "device"


class TestEnvironment:
    @pytest.mark.parametrize("variable", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"])
    def test_one_file_per_rank_with_its_rank_in_the_environment(self, tmp_path: Path, variable: str) -> None:
        paths = [
            write_events(
                [busy(), Env("DeviceEnvironment", f"{variable}={rank}"), Env("DeviceEnvironment", "WORLD_SIZE=3")],
                tmp_path / f"part_{name}.sqlite",
            )
            for name, rank in (("a", 2), ("b", 0), ("c", 1))
        ]
        found, source = ranks_of(paths)
        assert ([file for file, _, _ in found.values()], source) == (["part_b", "part_c", "part_a"], "environment")
        assert "2 of 3 ranks present; missing: 2" in notices(paths[1:])["ranks-missing"]

    def test_local_rank_only_within_one_host(self, tmp_path: Path) -> None:
        def draw(folder: str, hosts: tuple[str, str]) -> list[Path]:
            (tmp_path / folder).mkdir()
            return [
                write_events(
                    [busy(), Env("DeviceEnvironment", f"LOCAL_RANK={1 - number}")],
                    tmp_path / folder / f"part_{number}.sqlite",
                    host=host,
                )
                for number, host in enumerate(hosts)
            ]

        assert ranks_of(draw("one", ("n0", "n0")))[0][0][0] == "part_1"
        assert ranks_of(draw("two", ("n0", "n1")))[1] == "first-kernel"

    def test_one_environment_for_several_gpus_says_nothing(self, tmp_path: Path) -> None:
        path = four(tmp_path, Env("DeviceEnvironment", "RANK=3"))
        assert ranks_of(path)[1] == "device"
        assert "environment" in notices(path)["rank-evidence-unusable"]

    def test_an_export_with_two_values_says_nothing(self, tmp_path: Path) -> None:
        rows = [busy(), Env("DeviceEnvironment", "RANK=3"), Env("DeviceEnvironment", "RANK=5")]
        assert ranks_of(write_events(rows, tmp_path / "x.sqlite"))[1] == "device"

    @pytest.mark.parametrize(
        "line", ["RANK=", "RANK=3x", "RANK=-3", "RANK=0x3", "XRANK=3", "RANK=12345678901", "rank=3", "RANK=3\nSECRET=1"]
    )
    def test_lines_of_another_shape_are_not_fetched(self, tmp_path: Path, line: str) -> None:
        assert ranks_of(write_events([busy(), Env("DeviceEnvironment", line)], tmp_path / "x.sqlite"))[1] == "device"

    def test_the_environment_of_a_captured_process(self, tmp_path: Path) -> None:
        path = write_events(
            [busy()], tmp_path / "x.sqlite", capture_meta=[("PROCESS_0:ENVIRONMENT_VARIABLE", "RANK=5")]
        )
        assert ranks_of(path) == ({5: ("x", 1000, 0)}, "environment")


class TestNotRanks:
    def test_a_side_context_is_listed_and_no_rank(self, tmp_path: Path) -> None:
        """Worker 1 touches GPU 0 for 100 ns of its 100 us."""
        rows: list[Any] = [busy(1, 0), busy(2, 1), Kernel("fill", 500, 600, pid=2, device=0)]
        rows += [Process("Worker_TP0", 1), Process("Worker_TP1", 2)]
        path = write_events(rows, tmp_path / "x.sqlite")
        assert ranks_of(path)[0] == {0: ("x", 1, 0), 1: ("x", 2, 1)}
        told = notices(path)["side-context"]
        assert told.startswith("info: ")
        assert "device 0 of process 2" in told

    def test_two_devices_that_share_the_work_are_two_ranks(self, tmp_path: Path) -> None:
        rows = [busy(1, 0), Kernel("gemm", 1_000, 21_000, pid=1, device=1)]
        assert len(ranks_of(write_events(rows, tmp_path / "x.sqlite"))[0]) == 2

    def test_a_device_with_copies_only_is_listed_and_no_rank(self, tmp_path: Path) -> None:
        rows = [busy(1, 1), Copy("H2D", 5, 50, pid=1, device=0), Memset(5, 50, pid=1, device=0)]
        path = write_events(rows, tmp_path / "x.sqlite")
        assert ranks_of(path)[0] == {1: ("x", 1, 1)}
        assert "device 0 of process 1" in notices(path)["no-kernels"]

    def test_a_process_without_evidence_on_a_workers_gpu_is_foreign(self, tmp_path: Path) -> None:
        rows: list[Any] = [busy(1, 0), busy(2, 1), Process("Worker_TP0", 1), Process("Worker_TP1", 2), busy(66, 0)]
        path = write_events(rows, tmp_path / "x.sqlite")
        assert ranks_of(path)[0] == {0: ("x", 1, 0), 1: ("x", 2, 1)}
        assert "process 66 does not belong" in notices(path)["foreign-process"]
        ran = tracelens("info", path, "--format", "json")
        ledger = {row["table"]: row for row in ran.json["ledger"]}
        assert ledger["CUPTI_ACTIVITY_KIND_KERNEL"]["reason"] == "1 foreign process"

    def test_a_process_on_a_gpu_of_its_own_is_not_foreign(self, tmp_path: Path) -> None:
        rows: list[Any] = [busy(1, 0), Process("Worker_TP0", 1), busy(66, 1)]
        assert len(ranks_of(write_events(rows, tmp_path / "x.sqlite"))[0]) == 2

    def test_equal_ordinals_of_different_gpus_make_nobody_foreign(self, tmp_path: Path) -> None:
        """Each process sees its own GPU as device 0; one of them has no title."""
        rows: list[Any] = [busy(1, 0), busy(2, 0), Process("Worker_TP0", 1)]
        rows += [GpuRow(0, pid=1, gpu=0, uuid="u-0"), GpuRow(0, pid=2, gpu=1, uuid="u-1")]
        assert len(ranks_of(write_events(rows, tmp_path / "x.sqlite"))[0]) == 2

    def test_one_gpu_given_twice(self, tmp_path: Path) -> None:
        paths = [
            write_events([busy(), GpuRow(0, pid=1000, uuid=uuid)], tmp_path / f"rank{n}.sqlite")
            for n, uuid in enumerate(("u-0", "u-0", "u-1"))
        ]
        assert notices(paths)["gpu-shared"] == "warning: rank 0 and rank 1 ran on the same GPU"
        assert "gpu-shared" not in notices(paths[1:])

    def test_one_gpu_given_twice_is_seen_by_its_bus_address_within_a_host(self, tmp_path: Path) -> None:
        def draw(folder: str, hosts: tuple[str, str]) -> list[Path]:
            (tmp_path / folder).mkdir()
            paths = []
            for n, host in enumerate(hosts):
                path = write_events(
                    [busy(), GpuRow(0, pid=1000, bus="0000:18:00.0")], tmp_path / folder / f"rank{n}.sqlite", host=host
                )
                edit(path, "UPDATE TARGET_INFO_GPU SET uuid = NULL", "UPDATE TARGET_INFO_CUDA_DEVICE SET uuid = NULL")
                paths.append(path)
            return paths

        assert "gpu-shared" in notices(draw("one", ("n0", "n0")))
        assert "gpu-shared" not in notices(draw("two", ("n0", "n1")))

    def test_a_graph_that_began_on_the_host_belongs_to_its_processs_main_device(self, tmp_path: Path) -> None:
        """INT_MAX is no device."""
        rows: list[Any] = [busy(1, 3), Kernel("x", 5, 6, pid=1, device=0)]
        rows += [GraphTrace(200_000, 300_000, pid=1, device=2**31 - 1)]
        path = write_events(rows, tmp_path / "x.sqlite")
        with loaded(path) as trace:
            assert trace.db.execute("SELECT rank, kind, end_ns FROM event WHERE kind = 3").fetchall() == [
                (3, 3, 300_000)
            ]


class TestRankMap:
    def draw(self, tmp_path: Path) -> Path:
        return write_events([busy(1, 0), busy(2, 1)], tmp_path / "tp2.sqlite")

    def test_it_decides(self, tmp_path: Path) -> None:
        path = self.draw(tmp_path)
        ran = tracelens("info", path, "--rank-map", "7=tp2.sqlite:0,3=tp2.sqlite:1", "--format", "json")
        assert [(row["rank"], row["device"], row["rank_source"]) for row in ran.json["ranks"]] == [
            (3, 1, "rank-map"),
            (7, 0, "rank-map"),
        ]

    @pytest.mark.parametrize("place", ["a/x.sqlite", "{}/a/x.sqlite"])
    def test_files_of_one_name_in_two_folders(self, tmp_path: Path, place: str) -> None:
        for folder in "ab":
            (tmp_path / folder).mkdir()
            write_events([busy()], tmp_path / folder / "x.sqlite")
        place = place.format(tmp_path)
        paths = [tmp_path / "a/x.sqlite", tmp_path / "b/x.sqlite"]
        found = ranks_of(paths, rank_map={1: (place, None), 0: ("b/x.sqlite", None)})
        assert list(found[0]) == [0, 1]
        with loaded(paths, rank_map={1: (place, None), 0: ("b/x.sqlite", None)}) as trace:
            rows = trace.db.execute("SELECT rank, path FROM rank JOIN export USING (export) ORDER BY rank").fetchall()
        assert rows == [(0, f"{tmp_path}/b/x.sqlite"), (1, f"{tmp_path}/a/x.sqlite")]
        with pytest.raises(RankError, match="holds 2 GPUs"):
            ranks_of(paths, rank_map={1: ("x.sqlite", None), 0: ("b/x.sqlite", None)})

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("0=tp2.sqlite:0,1=tp2.sqlite:0", "twice"),
            ("0=tp2.sqlite:0,1=other.sqlite:1", "not in the capture"),
            ("0=tp2.sqlite:0,1=tp2.sqlite:5", "not in the capture"),
            ("0=tp2.sqlite,1=tp2.sqlite:1", "holds 2 GPUs"),
            ("0=tp2.sqlite:0", "leaves out"),
            ("0=tp2.sqlite:0,0=tp2.sqlite:1", "rank 0 twice"),
            ("x=tp2.sqlite:0", "is not rank=path:device"),
            ("²=tp2.sqlite:0", "is not rank=path:device"),
            ("0=", "is not rank=path:device"),
            ("nofile.json", "cannot be read"),
            ("9999999999999=tp2.sqlite:0,1=tp2.sqlite:1", "no rank is that large"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, tmp_path: Path, text: str, said: str) -> None:
        path = self.draw(tmp_path)
        assert said in refused(tracelens("bucket", path, "--rank-map", text))

    def test_a_large_rank_costs_no_memory(self, tmp_path: Path) -> None:
        path = write_events([busy()], tmp_path / "x.sqlite")
        ran = tracelens("bucket", path, "--rank-map", "1000000=x.sqlite", "--format", "json")
        assert {row["rank"] for row in ran.json["buckets"]} == {1_000_000}

    def test_a_file_of_lines_or_json(self, tmp_path: Path) -> None:
        path = self.draw(tmp_path)
        (tmp_path / "map.txt").write_text("# by hand\n1=tp2.sqlite:0\n\n0=tp2.sqlite:1\n")
        (tmp_path / "map.json").write_text('{"1": "tp2.sqlite:0", "0": "tp2.sqlite:1"}')
        for name in ("map.txt", "map.json"):
            ran = tracelens("info", path, "--rank-map", tmp_path / name, "--format", "json")
            assert [row["device"] for row in ran.json["ranks"]] == [1, 0]
        for broken in ("[1]", '{"0": ', '{"0": 5}', '{"0": null}'):
            (tmp_path / "map.json").write_text(broken)
            refused(tracelens("info", path, "--rank-map", tmp_path / "map.json"))
        (tmp_path / "map.json").write_bytes(b"\xff\xfe\x00")
        refused(tracelens("info", path, "--rank-map", tmp_path / "map.json"))

    def test_a_map_of_many_ranks_is_no_file_name(self, tmp_path: Path) -> None:
        paths = [write_events([busy()], tmp_path / f"part_{n:02}.sqlite") for n in range(16)]
        text = ",".join(f"{n}=part_{n:02}.sqlite:0" for n in range(16))
        assert len(text) > 255
        ran = tracelens("info", *paths, "--rank-map", text, "--format", "json")
        assert ran.code == 0, ran.err
        assert len(ran.json["ranks"]) == 16


def test_expected_ranks_that_are_not_there(tmp_path: Path) -> None:
    path = write_events([busy()], tmp_path / "x.sqlite")
    assert "1 of 4 ranks present; missing: 1, 2, 3" in notices(path, expect_ranks=4)["ranks-missing"]
    ran = tracelens("bucket", path, "--expect-ranks", "4", "--strict")
    assert ran.code == 1
    assert "ranks-unexpected" in notices(four(tmp_path), expect_ranks=2)
    assert "2000000000 ranks present" in notices(path, expect_ranks=2_000_000_000)["ranks-missing"]


def test_a_rank_that_is_not_in_the_capture(tmp_path: Path) -> None:
    said = refused(tracelens("bucket", four(tmp_path), "--ranks", "2-5"))
    assert "rank 4, 5 is not in the capture, which has ranks 0-3" in said


def test_names_and_uuids_of_gpus(tmp_path: Path) -> None:
    """The machine lists its GPUs backwards; the process's ordinal 0 is its GPU 3."""
    rows: list[Any] = [busy(1, 0)]
    rows += [GpuRow(0, pid=1, gpu=3, name="H200", uuid="u-3"), GpuRow(5, gpu=0, name="L4", uuid="u-0")]
    path = write_events(rows, tmp_path / "x.sqlite")
    with loaded(path) as trace:
        assert trace.db.execute("SELECT gpu_name, gpu_uuid FROM rank").fetchall() == [("H200", "u-3")]


def test_old_exports_name_gpus_by_process_and_ordinal(tmp_path: Path) -> None:
    rows: list[Any] = [busy(1, 0), busy(2, 0, at=9), GpuRow(0, pid=1, name="A100"), GpuRow(0, pid=2, name="V100")]
    path = write_events(rows, tmp_path / "x.sqlite", nsys_version="old_unknown")
    with loaded(path) as trace:
        names = trace.db.execute("SELECT pid, gpu_name FROM rank JOIN process USING (process) ORDER BY pid").fetchall()
    assert names == [(1, "A100"), (2, "V100")]


def test_the_pid_inside_a_container_is_not_unique_over_files(tmp_path: Path) -> None:
    paths = [write_events([busy(148)], tmp_path / f"rank{n}.sqlite") for n in range(2)]
    assert ranks_of(paths)[0] == {0: ("rank0", 148, 0), 1: ("rank1", 148, 0)}
