"""Settings for the whole suite."""

import warnings
from pathlib import Path

import matplotlib
import pytest
import torch

from learned_samplers.learned.native.kernel import native_library

matplotlib.use("Agg")
# The tests' tensors are small: one thread is faster than two, and far faster where the cores are shared.
torch.set_num_threads(1)


#: Files of some two seconds and more, of one core: what `make check` leaves out.
SLOW = frozenset(
    {
        "learned_samplers/adapters/test_folders.py",
        "learned_samplers/adapters/test_grouped.py",
        "learned_samplers/adapters/test_language.py",
        "learned_samplers/adapters/test_model.py",
        "learned_samplers/adapters/test_training.py",
        "learned_samplers/approximations/test_ivon.py",
        "learned_samplers/approximations/test_laplace.py",
        "learned_samplers/approximations/test_swag.py",
        "learned_samplers/base/guards/test_outside.py",
        "learned_samplers/base/test_broken_off.py",
        "learned_samplers/base/test_compile.py",
        "learned_samplers/base/test_distributed.py",
        "learned_samplers/base/test_interrupted.py",
        "learned_samplers/base/test_locks.py",
        "learned_samplers/base/test_noise.py",
        "learned_samplers/base/test_nothing_changed.py",
        "learned_samplers/base/test_precision.py",
        "learned_samplers/base/test_prior_mean.py",
        "learned_samplers/base/test_saved_state.py",
        "learned_samplers/base/test_sharding.py",
        "learned_samplers/base/test_step.py",
        "learned_samplers/benchmark/test_run.py",
        "learned_samplers/benchmark/test_targets.py",
        "learned_samplers/checks/test_adapters.py",
        "learned_samplers/checks/test_check.py",
        "learned_samplers/checks/test_held_out.py",
        "learned_samplers/checks/test_law.py",
        "learned_samplers/checks/test_linear.py",
        "learned_samplers/checks/test_moments.py",
        "learned_samplers/checks/test_simulation.py",
        "learned_samplers/checks/test_stationarity.py",
        "learned_samplers/checks/test_step_size.py",
        "learned_samplers/checks/test_targets.py",
        "learned_samplers/classical/test_adapted.py",
        "learned_samplers/classical/test_baoa.py",
        "learned_samplers/classical/test_full_data.py",
        "learned_samplers/classical/test_hmc.py",
        "learned_samplers/classical/test_mass.py",
        "learned_samplers/classical/test_mclmc.py",
        "learned_samplers/classical/test_restarts.py",
        "learned_samplers/classical/test_sgnht.py",
        "learned_samplers/classical/test_whitened.py",
        "learned_samplers/diagnostics/test_learning_coefficient.py",
        "learned_samplers/estimators/test_base.py",
        "learned_samplers/estimators/test_classifier.py",
        "learned_samplers/estimators/test_module.py",
        "learned_samplers/estimators/test_priors.py",
        "learned_samplers/estimators/test_refusals.py",
        "learned_samplers/estimators/test_regressor.py",
        "learned_samplers/estimators/test_sampling.py",
        "learned_samplers/estimators/test_tuned_steps.py",
        "learned_samplers/integrations/test_botorch.py",
        "learned_samplers/integrations/test_huggingface.py",
        "learned_samplers/learned/native/test_library.py",
        "learned_samplers/learned/test_averages.py",
        "learned_samplers/learned/test_kinetic.py",
        "learned_samplers/learned/test_l2e_step.py",
        "learned_samplers/learned/test_meta_sgmcmc_law.py",
        "learned_samplers/metrics/test_selective.py",
        "learned_samplers/particles/test_baselines.py",
        "learned_samplers/particles/test_fsvgd.py",
        "learned_samplers/particles/test_prediction.py",
        "learned_samplers/particles/test_svgd.py",
        "learned_samplers/posterior/test_chains.py",
        "learned_samplers/posterior/test_collect.py",
        "learned_samplers/posterior/test_memory.py",
        "learned_samplers/posterior/test_replica.py",
        "learned_samplers/posterior/test_verdict.py",
        "learned_samplers/priors/test_by_name.py",
        "learned_samplers/priors/test_gamma.py",
        "learned_samplers/priors/test_relevance.py",
        "learned_samplers/test_light.py",
        "learned_samplers/test_main.py",
        "learned_samplers/test_plots.py",
        "meta_tasks/datasets/test_loading.py",
        "meta_tasks/datasets/test_npz.py",
        "meta_tasks/estimators/test_evolution.py",
        "meta_tasks/estimators/test_truncated.py",
        "meta_tasks/inner_loop/test_chains.py",
        "meta_tasks/rules/test_network_rule.py",
        "meta_tasks/rules/test_own_rule.py",
        "meta_tasks/training/test_evaluation.py",
        "meta_tasks/training/test_process.py",
        "meta_tasks/training/test_ranks.py",
        "meta_tasks/training/test_trainer.py",
        "meta_tasks/training/test_workers.py",
        "test_documentation.py",
        "test_learned_samplers_pytest.py",
        "test_packaging.py",
        "tools/experiments/bandits/test_posteriors.py",
        "tools/experiments/compare/test_cifar32.py",
        "tools/experiments/compare/test_distance.py",
        "tools/experiments/compare/test_explore.py",
        "tools/experiments/function_space/test_images.py",
        "tools/experiments/function_space/test_sine.py",
        "tools/experiments/function_space/test_uci.py",
        "tools/experiments/harness/runs/test_checkpoint.py",
        "tools/experiments/harness/runs/test_own_models.py",
        "tools/experiments/harness/runs/test_runner.py",
        "tools/experiments/harness/test_devices.py",
        "tools/experiments/harness/test_run_store.py",
        "tools/experiments/meta_training/test_law.py",
        "tools/experiments/tables/test_tables.py",
        "tools/test_benchmark.py",
        "tools/test_compare.py",
        "tools/test_demo.py",
        "tools/test_function_space.py",
        "tools/test_given_settings.py",
        "tools/test_gpu_check.py",
        "tools/test_meta_train.py",
        "tools/test_multi_task.py",
        "tools/test_newcomer.py",
        "tools/test_ship.py",
        "tools/test_texts.py",
        "tools/test_toy.py",
        "website/test_pages.py",
    }
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow files."""
    root = Path(__file__).parent
    for item in items:
        if item.path.relative_to(root).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _compiled_update():
    """Found or compiled once; on a machine without a compiler the suite runs without it, and its own tests skip."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        native_library()


@pytest.fixture(autouse=True)
def _seed():
    """Every test starts from the same seed; those that need another set it."""
    torch.manual_seed(0)
