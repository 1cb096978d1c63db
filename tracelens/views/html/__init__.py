"""The kernel-budget report: one HTML file that needs nothing but a browser.

    write_report(result, "report.html", version=tracelens.__version__)

`result` is a `frames.Result` whose tables have the names below; each may be absent, and its place in the page then
says so. The page holds the tables as columns, and its own script draws charts and tables from the same columns, so
a chart and the numbers under it cannot differ. Nothing is fetched: style, script and data are in the file.

Charts are drawn by a script of about 45 kB written for this page. Embedding plotly's (4.8 MB; 2.0 MB compressed and
base64-encoded) would fit the size limit, but make every report 2 MB that a budget of 100 kB does not need, and its
charts answer neither the keyboard nor the page's colours. `tracelens.views.figures` gives the same charts as plotly
figures, for notebooks.

    findings                                    finding, kind, per_step_ns, per_step_frac
    exports ranks ledger                        what was read (as `info`)
    step_buckets                                as `buckets`, of one typical step, of the decode phase where there is one
    buckets kernels                             the whole selection (as `bucket --kernels`)
    summary step_points                         latency per phase and rung; one row per step shown
    collective_split                            rank, wait_ns, transfer_ns, unsplit_ns, hidden_ns: per step
    causes edges                                as `gaps`
    operations rank_operations                  as `collectives`
    verdict skew_ranks clock set_aside          as `skew` (its `ranks` is `skew_ranks`)
    waits                                       rank, first_step, last_step, wait_ns: the heat-map over steps
    position_waits                              rank, position, wait_ns: the heat-map over the layer stack
    arrivals                                    rank and quantiles of the delay after the first arrival
    slices                                      view, step, rank, stream, kind, bucket, name, start_ns, duration_ns
    compare_verdict compare_buckets compare_collective_parts compare_kernels compare_gaps compare_ranks
    compare_environment                         as `compare`
    scaling_points scaling_fit scaling_what_if  as `scaling`
"""

from tracelens.views.html.page import render, write_report

__all__ = ["render", "write_report"]
