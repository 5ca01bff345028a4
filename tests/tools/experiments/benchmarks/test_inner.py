"""tools/benchmark.py inner: every variant computes the same gradients, and the tables say what was measured."""

import sys

import pytest
import torch
from experiments.benchmarks import inner as _benchmark_inner
from experiments.benchmarks import protocol as _benchmark_protocol
from experiments.benchmarks import variants as _benchmark_variants
from experiments.benchmarks.inner import InnerBenchmark, Processes, gflop, make_unroll, peer_speed
from experiments.benchmarks.protocol import Protocol, load_data, make_trainer
from experiments.benchmarks.variants import NETWORK_VARIANTS, make_network, variant_rule, variant_stepping, variants_on

from meta_tasks.inner_loop.schedule import Schedule
from meta_tasks.networks import batched_network_for
from meta_tasks.rules.learned import L2ERule
from meta_tasks.rules.triton_l2e import FusedL2ERule
from meta_tasks.tasks import family_named


@pytest.mark.parametrize("variant", [name for name in NETWORK_VARIANTS if name != "compiled"])
def test_every_variant_computes_the_same_gradients(variant):
    # "compiled" takes half a minute; it is autograd through torch.compile, whose own tests are torch's
    chosen = batched_network_for("cnn", (1, 8, 8), 10, channels=4, depth=2)
    weights = torch.stack([chosen.initial(seed) for seed in range(4)])
    x, y = torch.rand(2, 6, 1, 8, 8), torch.randint(10, (2, 6))
    with torch.no_grad():
        loss, gradient = make_network(variant, chosen, 4, 6).loss_and_gradient(weights, x, y)
        expected_loss, expected_gradient = chosen.loss_and_gradient(weights, x, y)
    tolerance = 5e-2 if variant == "bf16" else 1e-5
    torch.testing.assert_close(loss, expected_loss, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient, expected_gradient, rtol=10 * tolerance, atol=tolerance)


def test_the_arithmetic_of_a_member_step_is_counted():
    # one layer, one channel, one image of 2×2: 36 multiply-adds forward and as many for the weights; linear 1·20 and
    # 20·10, three times; L2E on d = 10 + 40 + 210 coordinates, two passes of 9·32 + 32·32, 32·2 and 32·1
    network = 2 * 36 + 3 * (20 + 200)
    passes = 260 * (2 * (9 * 32 + 32 * 32) + 96)
    assert gflop(1, 1, 2, 1, 9) == pytest.approx(2e-9 * (network + passes))


def test_an_unroll_of_the_benchmark_takes_steps():
    run, weights = make_unroll((4, 1, 8, 16), InnerBenchmark(members=4), "chosen")
    assert len(run.parameter) == 4
    assert run.members_per_group == 2
    before = run.parameter.clone()
    run.advance(weights, 2)
    assert not torch.equal(run.parameter, before)
    assert run.parameter.isfinite().all()


def test_the_peer_gets_the_configuration_and_its_number_is_read():
    script = "import sys; print('peer', *sys.argv[1:], 'member-steps/s=12.50')"
    assert peer_speed(f'{sys.executable} -c "{script}"', 2, (4, 1, 28, 128)) == 12.5
    expected = "--members 2 --channels 4 --depth 1 --size 28 --batch 128"
    check = f"import sys; assert sys.argv[1:] == '{expected}'.split(); print('member-steps/s=1')"
    assert peer_speed(f'{sys.executable} -c "{check}"', 2, (4, 1, 28, 128)) == 1
    with pytest.raises(SystemExit, match="gave no member-steps/s"):
        peer_speed(f"{sys.executable} -c pass", 2, (4, 1, 28, 128))
    with pytest.raises(SystemExit, match=r"error: network_variants must be of chosen, .* or all, got fast"):
        InnerBenchmark(network_variants=("fast",)).run()


def test_the_whole_benchmark_on_a_tiny_network(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_benchmark_inner, "CONFIGURATIONS", ((4, 1, 8, 16),))
    peer = f"{sys.executable} -c \"print('member-steps/s=10')\""
    options = InnerBenchmark(
        processes=1,
        steps=2,
        rounds=1,
        peer=peer,
        network_variants=("autograd",),
        step_variants=("all",),
        out=tmp_path / "table.md",
        members=2,
    )
    options.run()
    text = (tmp_path / "table.md").read_text()
    assert capsys.readouterr().out.strip() in text
    row = next(line for line in text.splitlines() if line.startswith("| 4, 1, 8, 16 |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[4] == "10"
    assert float(cells[2]) > 0
    assert float(cells[5].rstrip("×")) == pytest.approx(float(cells[2]) / 10, rel=0.1)
    assert "| autograd, one member at a time |" in text
    assert "torch " + torch.__version__ + ", CPU, 1 processes of 2 members" in text
    assert "all processes together); the peer is one process\n" in text
    for variant in ("loop: tensors of their own", "static: between fixed buffers"):
        row = next(line for line in text.splitlines() if line.startswith(f"| {variant}"))
        assert float(row.strip("|").split("|")[1]) > 0


def test_an_error_in_a_process_is_explained(monkeypatch):
    monkeypatch.setattr(_benchmark_inner, "Processes", lambda options: pytest.fail("processes were started"))
    with pytest.raises(ValueError, match="nonsense"):
        InnerBenchmark(processes=1, feature_set="nonsense").run()
    monkeypatch.undo()
    processes = Processes(InnerBenchmark(processes=1, members=1))
    try:
        with pytest.raises(SystemExit, match="error: a process of the benchmark ended at what it does not know"):
            processes.seconds("what it does not know")
    finally:
        for process in processes.processes:
            process.join()


def test_the_variants_of_a_device_and_what_they_are(monkeypatch):
    assert variants_on("cpu") == ("loop", "static")
    monkeypatch.setattr(_benchmark_variants, "triton_installed", lambda: True)
    assert variants_on("cuda:0") == ("loop", "static", "graph", "fused-loop", "fused-graph")
    monkeypatch.setattr(_benchmark_variants, "triton_installed", lambda: False)
    assert variants_on("cuda") == ("loop", "static", "graph")
    assert (variant_stepping("fused-graph"), variant_rule("fused-graph")) == ("graph", FusedL2ERule)
    assert (variant_stepping("static"), variant_rule("static")) == ("static", L2ERule)
    assert (variant_stepping("hand-loop"), variant_rule("hand-loop")) == ("loop", L2ERule)
    runs = [make_unroll((4, 1, 8, 16), InnerBenchmark(members=2), name) for name in ("loop", "static")]
    assert [run.stepping for run, _ in runs] == ["loop", "static"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="error: device='cuda': torch finds no GPU"):
        InnerBenchmark(device="cuda").run()
    with pytest.raises(SystemExit, match="error: step_variants must be of loop, static or all, got graph"):
        InnerBenchmark(step_variants=("graph",)).run()


def test_the_protocol_is_the_papers():
    trainer = make_trainer(Protocol(family="digits"), family_named("digits"), "paper", "static")
    (job,) = trainer._jobs()
    assert job.schedule == Schedule(3000, 2500, 50)
    assert job.schedule.num_samples == 10
    assert len(job.pairs) == 1
    assert trainer.settings.iterations == 1000
    assert trainer.executor.evaluator.make(job).stepping == "static"
    assert trainer.estimator.specification()["sigma"] == 0.01
    assert len(family_named("paper").architectures) * len(family_named("paper").dataset_names) == 120


def test_random_images_stand_for_the_data_of_the_paper(monkeypatch):
    monkeypatch.setattr(_benchmark_protocol, "RANDOM_IMAGES", 3000)
    protocol, family = Protocol(inner=60, random_data=True), family_named("paper")
    load_data(protocol, family)
    trainer = make_trainer(protocol, family, "paper", "loop")
    assert trainer.executor.evaluator.make(trainer._jobs()[0]).task._train[0].shape[2:] == (28, 28)
    assert {(name, data.num_classes, data.input_shape) for (name, _), data in family._loaded.items()} == {
        ("mnist", 10, (1, 28, 28)),
        ("fashion_mnist", 10, (1, 28, 28)),
        ("emnist", 10, (1, 28, 28)),
        ("bloodmnist", 8, (3, 28, 28)),
    }


def test_the_protocol_is_measured_and_extrapolated(tmp_path, capsys, monkeypatch):
    options = InnerBenchmark(
        protocol=3,
        step_variants=("all",),
        protocol_of=Protocol(inner=60, outer=600, family="digits"),
        out=tmp_path / "t.md",
    )
    options.run()
    text = (tmp_path / "t.md").read_text()
    assert capsys.readouterr().out.strip() in text
    assert "600 outer × 60 inner steps of 2 members, task family 'digits', paper features" in text
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith(("| loop |", "| static |"))]
    assert len(rows) == 2
    for row in rows:
        mean, speed, minutes = float(row[1].split()[0]), float(row[2]), float(row[3].split("±")[0])
        assert minutes == pytest.approx(mean * 10, rel=0.01)
        assert speed == pytest.approx(2 * 60 / mean, rel=0.01)
    with pytest.raises(SystemExit, match="error: protocol needs at least 2 iterations for its error, got 1"):
        InnerBenchmark(protocol=1).run()
    monkeypatch.setenv("LEARNED_SAMPLERS_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"error: .*mnist"):
        InnerBenchmark(protocol=2).run()
    with pytest.raises(SystemExit, match=r"error: .*collection window"):
        InnerBenchmark(protocol=2, protocol_of=Protocol(inner=20, family="digits")).run()
