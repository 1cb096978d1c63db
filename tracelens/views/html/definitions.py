"""How each figure of the report is defined, for the reader who wants to argue with it."""

from __future__ import annotations

DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "Rank, span, busy, idle",
        "A rank is one GPU of the job. Its span runs from the start of its first event (kernel, copy or memset) to the "
        "end of its last; busy is the length of the union of its events; idle is the rest. Overlap is counted once, "
        "so busy never exceeds the span.",
    ),
    (
        "Elapsed time of a bucket",
        "Each instant of busy time belongs to exactly one bucket: where events overlap, to the one that started "
        "first (or, with compute-first attribution, to one that is not a collective). Elapsed times and idle add up "
        "to the span, to the nanosecond. Kernel time is the plain sum of durations and may exceed it.",
    ),
    (
        "Step",
        "One forward pass: a decode iteration, a prefill, a mixed batch. Its window runs from the start of its first "
        "event on the stream with most kernel time to the next step's; its latency is the length of that window, "
        "the median over ranks. Steps cut by the capture's edge, followed by idle between requests, or belonging to "
        "the warm-up are drawn, but enter no statistic. Phases and batch sizes are never mixed.",
    ),
    (
        "Arrival, wait, transfer",
        "A collective is matched across the ranks of its communicator, on one aligned clock. A rank arrives when its "
        "kernel starts. Its wait lasts until the last rank arrives: nothing can move before. Transfer is what remains "
        "after that, the median over members. Duration alone cannot tell the two apart: the rank that waits longest "
        "shows the slowest-looking kernel.",
    ),
    (
        "Hidden and exposed",
        "A collective is hidden while a kernel that is no collective runs on another stream of the same rank, and "
        "exposed otherwise. Copies hide nothing, and neither does work on the same stream.",
    ),
    (
        "Lateness and its cause",
        "Lateness is a rank's arrival less that of the lower-median member. The stretch since the previous collective "
        "is cut into device work, host (launches that came late), upstream (another communicator was late) and the "
        "rest; the parts add up to the lateness. The largest share of the straggler's mean lateness is the cause, "
        "or mixed below 60 %.",
    ),
    (
        "Recoverable time",
        "Summed over exposed collectives of a step: last arrival less the lower-median arrival. It estimates what "
        "evening out the late ranks would save; measured from the first arrival it is the bound.",
    ),
    (
        "Gap causes",
        "A gap is a stretch in which nothing runs on a rank. It is named by the event that ends it: host late (the "
        "launch call began after the device ran dry), launch latency (the launch was in flight), in graph (between "
        "nodes of one replay), back to back (at most 5 us between queued kernels of one stream), dependency (queued, "
        "waiting for another stream), step boundary, idle between requests, or unknown where no launch was recorded.",
    ),
    (
        "Aligned clock",
        "Every GPU of every capture file has its own clock. They are fitted to the ends of synchronising collectives, "
        "which end together on all ranks. The residual is the 95th percentile of the remaining deviation, the "
        "asymmetry what two kinds of collective disagree by; single waits are claimed above their sum.",
    ),
    (
        "p50, p90, p99",
        "Percentiles over complete steps outside the warm-up, of one phase and one batch size.",
    ),
)
