"""From a run to its model: the reference model for its plan, a model of transformers for a plan of tensors."""

from expertp.adapters.fit import Fit
from expertp.spec import RunSpec
from expertp.training.ranks import ALONE, Ranks
from expertp.training.reference import ReferenceModel
from expertp.training.resolution import plan_run
from expertp.training.run_model import RunModel


def build_model(run: RunSpec, device: str, ranks: Ranks = ALONE) -> RunModel:
    """Return the model of a run, which `ranks` share; its weights are not those of the plan before `init_`."""
    planned = plan_run(run)
    if isinstance(planned, Fit):
        assert ranks.is_alone, "refused by check_layout"
        from expertp.training.hugging_face import HuggingFaceModel

        return HuggingFaceModel(run, planned, device)
    return ReferenceModel(run, planned, device, ranks)


def check_model(run: RunSpec, device: str) -> None:
    """Raise `InputError` if the run has no valid plan or its model cannot be trained as the run wants."""
    planned = plan_run(run)
    if isinstance(planned, Fit):
        from expertp.training.hugging_face import HuggingFaceModel

        HuggingFaceModel.check(run, planned, device)
    else:
        ReferenceModel.check(run, planned, device)
