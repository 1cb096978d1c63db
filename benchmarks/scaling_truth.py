"""The scaling figures against what is known of them: run `python benchmarks/scaling_truth.py`.

Prints the model's numbers for Llama-3-8B, how well a known lambda is found through noise, the fits of a published
table, the ceilings of communication alone, and what a simulated sweep with one slow rank is said to lose where.
`--captures` also simulates and reads one capture per TP size (some 20 s).
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from tracelens.analyses.harness_results import MEDIAN_DECODE_STEP, Measurement
from tracelens.analyses.residual import TracedCollective, TracedStep
from tracelens.analyses.scaling import ScalingResult, scaling
from tracelens.analyses.scaling_fit import affine_fit, curve_fit
from tracelens.analyses.scaling_model import ScalingModel, floor_us, predict
from tracelens.analyses.scaling_points import Question, SweepPoint
from tracelens.analyses.scaling_presets import gpu, model_shape

SIZES = (1, 2, 4, 8)
SHAPE, GPU = model_shape("llama-3-8b"), gpu("h100-sxm")
T1_US = floor_us(SHAPE, GPU)
MODEL = ScalingModel(SHAPE, GPU.link_bytes_per_s, 1, T1_US)


def line(what: str, found: str, known: str) -> None:
    print(f"  {what:<58} {found:>22}   {known}")


def model_figures() -> None:
    print("Llama-3-8B on H100 SXM")
    row = predict(MODEL, GPU, [8], [5]).prediction.row(0, named=True)
    line("t(1), ms", f"{T1_US / 1e3:.4f}", "4.481")
    line("floor at TP 8, us", f"{row['floor_us']:.2f}", "560")
    line("budget per collective, us", f"{row['budget_per_collective_us']:.3f}", "8.75")
    line("bandwidth term at TP 8, us", f"{row['bandwidth_us']:.3f}", "1.02")
    line("step at lambda 5 us, us", f"{row['step_us']:.2f}", "881")
    line("efficiency at lambda 5 us", f"{row['efficiency']:.4f}", "0.636")


def known_lambdas() -> None:
    print("A known lambda through 1 % noise, 1,000 draws: mean, coverage of the 95 % interval, within 5 %")
    for known in (None, T1_US):
        name = "t(1) free" if known is None else "t(1) from bytes"
        for lambda_us in (2.0, 5.0, 10.0, 20.0):
            true = np.array([MODEL.step_us(tp, lambda_us) for tp in SIZES])
            draws = true * np.random.default_rng(1).normal(1, 0.01, (1000, 4))
            fits = [
                curve_fit(
                    SIZES,
                    row,
                    all_reduces=64,
                    bandwidths_us=[MODEL.bandwidth_us(tp) for tp in SIZES],
                    known_t1_us=known,
                ).lambda_us
                for row in draws
            ]
            values = np.array([fit.value for fit in fits])
            low = np.array([fit.low for fit in fits], dtype=float)
            high = np.array([fit.high for fit in fits], dtype=float)
            covered = np.mean((low <= lambda_us) & (lambda_us <= high))
            close = np.mean(abs(values / lambda_us - 1) < 0.05)
            found = f"{values.mean():.3f} {covered:.1%} {close:.1%}"
            line(f"lambda {lambda_us:g} us, {name}", found, "+-1 %, 93-97 %" + (", >= 95 %" if lambda_us >= 10 else ""))


def published_table() -> None:
    print("Published whole generations, t = a / p + c, ms: a, c, R^2")
    rows = {
        "7B bs 1 H100": ([153.8, 128.6, 107.4, 97.6], "63.8 91.9 0.983"),
        "7B bs 1 A100": ([234.0, 171.7, 143.7, 136.5], "114.2 117.9 0.993"),
        "7B bs 8 H100": ([199.2, 156.2, 134.6, 129.1], "82.1 116.3 0.996"),
        "7B bs 8 A100": ([329.5, 237.6, 196.4, 181.9], "171.4 156.0 0.996"),
        "13B bs 1 H100": ([86.4, 69.7, 61.4], "33.3 53.1 1.000"),
        "13B bs 1 A100": ([142.5, 100.4, 207.8], "-62.6 - 0.195, refused"),
    }
    for name, (times_ms, known) in rows.items():
        fit = affine_fit(SIZES[: len(times_ms)], times_ms)
        found = f"{fit.a.value:.1f} {fit.c.value:.1f} {fit.r2:.3f}" + (" refused" if fit.refusal else "")
        line(name, found, known)


def ceilings() -> None:
    print("Ceilings of communication alone, tokens/s = 1e6 / (2 L T)")
    for layers, published in ((32, (426, 803)), (80, (171, 321)), (126, (108, 204))):
        for all_reduce_us, known in zip((36.6, 19.5), published, strict=True):
            found = 1e6 / (2 * layers * all_reduce_us)
            line(f"L = {layers}, T = {all_reduce_us} us", f"{found:.1f} ({found / known - 1:+.2%})", str(known))


def told(result: ScalingResult) -> None:
    largest = dict(result.fit.select("parameter", "value").iter_rows())["lambda_at_largest_us"]
    eight = result.points.sort("tp").row(-1, named=True)
    line("lambda fitted at TP 8, us", f"{largest:.2f}", "9.7: off, true 5")
    line("reference lambda, us", f"{eight['reference_lambda_us']:.2f}", eight["reference_source"])
    line("residual at TP 8, us", f"{eight['residual_us']:.1f}", "300 of waiting")
    for sentence in result.sentences:
        if sentence.startswith("TP 8 takes"):
            print(f"  {sentence}")


def one_slow_rank() -> None:
    print("One slow rank at TP 8 (300 us of waiting, true lambda 5 us), mean steps")
    points = []
    for tp in SIZES:
        wait_us = 300.0 if tp == 8 else 0.0
        step_us = MODEL.step_us(tp, 5) + wait_us
        group = TracedCollective("all_reduce", "custom_1stage", 8192, 64, wait_us * 1e3, 64 * 5e3, 5e3)
        traced = TracedStep(tp, step_us * 1e3, 100, 1, {"gemm": T1_US / tp * 1e3}, {}, 0, [group] if tp > 1 else [])
        points.append(SweepPoint(tp, [Measurement(tp, MEDIAN_DECODE_STEP, step_us, batch=1)], traced))
    told(scaling(points, Question(SHAPE)))


def captures() -> None:
    from tracelens.analyses.scaling_trace import traced_step
    from tracelens.api import load
    from tracelens.simulate import scenario, simulate, write

    print("The same as simulated captures (the late rank itself does not wait: the mean is 7/8 of 300.8 us)")
    points = []
    with tempfile.TemporaryDirectory() as folder:
        for label, spec in scenario("scaling").items():
            (path,) = write(simulate(replace(spec, steps=40)), Path(folder) / label)
            with load(path) as trace:
                points.append(SweepPoint(spec.tp, [], traced_step(trace, spec.tp, shape=SHAPE)[0]))
    told(scaling(points, Question(SHAPE)))


def main() -> None:
    model_figures()
    known_lambdas()
    published_table()
    ceilings()
    one_slow_rank()
    if "--captures" in sys.argv:
        captures()


if __name__ == "__main__":
    main()
