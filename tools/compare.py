"""Compare samplers at equal gradient evaluations, each tuned on validation data, at one or several budgets.

    python tools/compare.py --preset digits                              # needs no file; minutes of one core
    python tools/compare.py --preset cifar10 --data ~/data --sampler SGHMC PSGLD L2E --l2e-network my.safetensors

Tuning, by validation NLL over several seeds and never by test images, with equally many settings for every method: at
the smallest budget learning rates 1, 2, 5, 10, 20, … around its own, each with a balanced choice of what else it tunes
(momentum decay, temperature, exploration ratio, an optimizer's weight decay), then a few more near the best, beyond the
edge of the rates tried if it lies there; at every larger budget its best settings again in full (successive halving),
and a few more. The winner runs over all seeds, which the tuning has not seen. A seed has the same initial weights and
minibatches for every method. Runs are kept, so that a command that was interrupted goes on where it was. --settings-of
takes over what an earlier comparison chose, of a smaller network for instance. --tune-only stops before anything looks
at the test images.

Under --out: table.md, results.json, for each budget figure1 (scores against the number of samples, and effective
samples a second), figure2 (losses on the lines between samples, and the samples' cosine similarities), temperatures,
step_sizes (validation NLL against the learning rate) and what else is asked for as PNG, and steps_<budget>/ with every
run, its samples and its TensorBoard curves.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.harness.output import command_line, explained, tensorboard_hint
from experiments.images.compare_figures import draw_all
from experiments.images.compare_report import BudgetReport, content, tables, write_results
from experiments.images.compare_validation import validation_tables, write_validation
from experiments.images.comparison import Comparison, planned_gradients
from experiments.images.cost import cost_table, stand_in
from experiments.images.options import parse_compare

from meta_tasks.progress import progress


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = parse_compare(arguments, __doc__)
        try:
            data, ood = options.load()
        except FileNotFoundError as error:
            if not options.dry_run or not (options.budgets or options.settings.steps):
                raise
            print(f"random examples in its shape stand for the data set: {error}")
            data, ood = options.validated(stand_in(options.settings).to(options.prepared())), {}
        reference = None if options.dry_run else options.load_reference(data)
    out, budgets = options.folder(), options.all_budgets(data)
    print(f"{options.describe(data)}; budgets of {', '.join(map(str, budgets))} minibatch gradients a run")
    if options.dry_run:
        with explained():
            print(cost_table(options, data, planned_gradients(options, data)))
        return
    if options.tune_only:
        with explained(out), progress(unit="grad", smoothing=0.05) as bar:
            text = validation_tables(Comparison(options, data, bar), budgets)
        write_validation(out, text, command_line("compare", arguments))
        print(f"\n{text}\n\nin {out}: validation.md, and every run under steps_<budget>/")
        return
    reports: list[BudgetReport] = []
    with explained(out), progress(unit="grad", smoothing=0.05) as bar:
        comparison = Comparison(options, data, bar, ood, reference)
        for budget in budgets:
            reports.append(comparison.report(budget))
            write_results(out, reports, command_line("compare", arguments), options.settings_note(), budgets)
            draw_all(reports[-1], out)
    for report in reports:
        print(f"\n{tables(report.budget, content(report))}")
    print(f"\nin {out}: table.md, results.json, the figures, and every run under steps_<budget>/")
    print(tensorboard_hint(out))


if __name__ == "__main__":
    main()
