"""The tables of `skew` and `collectives`: every column with its unit and meaning."""

from __future__ import annotations

import polars as pl

from tracelens.frames import Column, Schema

VERDICT = Schema(
    "one communicator of two ranks or more, largest first",
    Column("set", pl.Int32, "ranks that share a common clock"),
    Column("communicator", pl.Int32, "number of the communicator"),
    Column("members", pl.String, "its ranks"),
    Column("class", pl.String, "transfer, arrival_skew, mixed or inconclusive: what the time in it is"),
    Column("straggler_rank", pl.Int32, "the rank that is late step after step; null when there is none"),
    Column("late_ranks", pl.String, "ranks that are late together; null when there are none"),
    Column("last_frac", pl.Float64, "share of steps in which the likeliest rank was last; null without trials", "frac"),
    Column("p_value", pl.Float64, "of that share under chance, Holm-adjusted over ranks; null without trials"),
    Column("cause", pl.String, "device, host, upstream, other, mixed or none: the largest part of the lateness"),
    Column("cause_detail", pl.String, "what is slower or later there; null without a cause"),
    Column("recoverable_per_step_ns", pl.Int64, "what evening out the late ranks would save; null without steps", "ns"),
    Column("recoverable_frac", pl.Float64, "that as a share of the mean step", "frac"),
    Column("skew_per_step_ns", pl.Int64, "the bound of it: last minus first arrival; null without steps", "ns"),
    Column("matched_count", pl.Int64, "instances the figures rest on", "count"),
    Column("unmatched_count", pl.Int64, "instances set aside", "count"),
    Column("sentence", pl.String, "the verdict in words"),
)

RANKS = Schema(
    "one rank in one communicator; sums over all accepted instances outside warm-up",
    Column("communicator", pl.Int32, "number of the communicator"),
    Column("rank", pl.Int32, "rank"),
    Column("matched_count", pl.Int64, "instances, the same for all members", "count"),
    Column("first_count", pl.Int64, "instances in which it arrived first by more than the clocks' resolution", "count"),
    Column("last_count", pl.Int64, "instances in which it arrived last by more than the clocks' resolution", "count"),
    Column("last_frac", pl.Float64, "last_count / matched_count; null without instances", "frac"),
    Column("wait_ns", pl.Int64, "time it waited for the last arrival, summed", "ns"),
    Column("wait_per_step_ns", pl.Int64, "the same per complete step; null without steps", "ns"),
    Column("caused_wait_ns", pl.Int64, "the others' waits where it was last, summed", "ns"),
    Column("critical_wait_ns", pl.Int64, "its lead over the next-to-last where it arrived last, summed", "ns"),
    Column(
        "lateness_mean_ns",
        pl.Int64,
        "mean of arrival minus the reference member's; null without an instance before",
        "ns",
    ),
    Column("device_lateness_ns", pl.Int64, "of it: its kernels and copies took longer", "ns"),
    Column("host_lateness_ns", pl.Int64, "of it: its launches came later", "ns"),
    Column("upstream_lateness_ns", pl.Int64, "of it: it left another communicator later", "ns"),
    Column("other_lateness_ns", pl.Int64, "of it: the rest; the four sum to the mean", "ns"),
    Column("compute_ratio", pl.Float64, "non-collective busy time per step over the lower median; null without steps"),
)

CLOCK = Schema(
    "one rank and one stretch of its GPU clock: aligned = local - offset - drift * (local - t0)",
    Column("set", pl.Int32, "ranks that share a common clock, that of the lowest"),
    Column("rank", pl.Int32, "rank"),
    Column("method", pl.String, "ends: fitted to the ends of collectives; trust: as recorded"),
    Column("valid_from_ns", pl.Int64, "own time from which it holds; a stepped clock has several rows", "ns"),
    Column("offset_ns", pl.Int64, "own clock minus the reference's in the middle of the instances", "ns"),
    Column("drift_ppm", pl.Float64, "how much faster the own clock runs", "ppm"),
    Column("residual_ns", pl.Int64, "95th percentile of the end deviations after the fit; null under trust", "ns"),
    Column(
        "asymmetry_ns",
        pl.Int64,
        "how far operations disagree about who leaves late; null under trust or with one",
        "ns",
    ),
    Column("matched_count", pl.Int64, "instances it rests on", "count"),
)

OPERATIONS = Schema(
    "one kernel of one communicator and message size",
    Column("communicator", pl.Int32, "number of the communicator; null where ranks could not be matched"),
    Column("collective", pl.String, "operation"),
    Column("implementation", pl.String, "how it is implemented"),
    Column("kernel_name", pl.String, "its (first) kernel"),
    Column("call_count", pl.Int64, "calls, of the rank that has most", "count"),
    Column("calls_per_step", pl.Float64, "calls per complete step, mean over ranks; null without steps"),
    Column("rank_count", pl.Int64, "ranks that call it", "count"),
    Column("message_bytes", pl.Int64, "message size from NCCL's payload; null where not recorded", "bytes"),
    Column("duration_p50_ns", pl.Int64, "median duration, waiting included", "ns"),
    Column(
        "transfer_p50_ns",
        pl.Int64,
        "median over instances of (median end - last arrival); null where not matched",
        "ns",
    ),
    Column("transfer_min_p50_ns", pl.Int64, "the same to the earliest end", "ns"),
    Column("completion_p50_ns", pl.Int64, "the same to the last end", "ns"),
    Column("wait_p50_ns", pl.Int64, "median wait over members and instances", "ns"),
    Column("skew_p50_ns", pl.Int64, "median of last minus first arrival", "ns"),
    Column("skew_p90_ns", pl.Int64, "90th percentile of it", "ns"),
    Column("skew_p99_ns", pl.Int64, "99th percentile of it", "ns"),
    Column("skew_max_ns", pl.Int64, "largest", "ns"),
    Column("wait_frac", pl.Float64, "share of its time that is waiting", "frac"),
    Column(
        "exposed_per_step_ns", pl.Int64, "time not hidden behind compute, per step and rank; null without steps", "ns"
    ),
    Column("bus_bw_gbps", pl.Float64, "nccl-tests' bus bandwidth; null where the message size is not known", "GB/s"),
    Column("class", pl.String, "transfer, arrival_skew, mixed or inconclusive"),
)

RANK_OPERATIONS = Schema(
    "one operation and implementation of one rank",
    Column("rank", pl.Int32, "rank"),
    Column("communicator", pl.Int32, "number of the communicator; null where ranks could not be matched"),
    Column("collective", pl.String, "operation"),
    Column("implementation", pl.String, "how it is implemented"),
    Column("calls_per_step", pl.Float64, "calls per complete step; null without steps"),
    Column("duration_p50_ns", pl.Int64, "median duration, waiting included", "ns"),
    Column("wait_per_step_ns", pl.Int64, "waiting per complete step; null where not matched or without steps", "ns"),
    Column("exposed_per_step_ns", pl.Int64, "time not hidden behind compute, per complete step", "ns"),
    Column("hidden_per_step_ns", pl.Int64, "time hidden behind compute of another stream, per complete step", "ns"),
    Column("overlap_frac", pl.Float64, "hidden share of its time", "frac"),
    Column("same_stream", pl.Boolean, "it shares its stream with compute, so it cannot overlap"),
)

INSTANCES = Schema(
    "one rank in one collective operation",
    Column("communicator", pl.Int32, "number of the communicator; null where the rank could not be matched"),
    Column("instance", pl.Int64, "number of the operation over all communicators; null where not matched"),
    Column("step", pl.Int32, "its step; null outside steps"),
    Column("position", pl.Int64, "place in the communicator's sequence, gaps counted"),
    Column("collective", pl.String, "operation"),
    Column("implementation", pl.String, "how it is implemented"),
    Column("rank", pl.Int32, "rank"),
    Column("start_ns", pl.Int64, "start, own time", "ns"),
    Column("end_ns", pl.Int64, "end, own time", "ns"),
    Column("arrival_ns", pl.Int64, "start on the common clock; null without one", "ns"),
    Column("wait_ns", pl.Int64, "last arrival minus own; null where set aside", "ns"),
    Column("transfer_ns", pl.Int64, "median over members of end minus last arrival; null where set aside", "ns"),
    Column("is_last", pl.Boolean, "it arrived last; null for all where nobody did by more than the resolution"),
)

SET_ASIDE = Schema(
    "one reason why collectives carry no wait",
    Column("reason", pl.String, "why"),
    Column("count", pl.Int64, "operations (of all members together), or calls of ranks that match nobody", "count"),
)
