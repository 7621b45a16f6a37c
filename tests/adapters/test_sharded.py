"""Adapted models that FSDP2 shards over two ranks: the numbers of one process."""

import json
from pathlib import Path

import pytest
from rank_program import do_adapt
from ranks import do_jobs

from expertp.training.ranks import ALONE

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")


@pytest.mark.heavy
def test_two_ranks_initialize_clip_step_balance_save_and_verify_as_one(tmp_path: Path) -> None:
    families = ("olmoe", "deepseek_v3")
    jobs = [{"do": "adapt", "model_type": name, "out": str(tmp_path / f"two {name}.json")} for name in families]
    outcomes = do_jobs(2, tmp_path / "ranks", jobs)
    for place, name in enumerate(families):
        one = do_adapt(ALONE, name, str(tmp_path / "one.json"))
        ranks = [rank[place] for rank in outcomes]
        assert [rank["norm"] for rank in ranks] == [pytest.approx(one["norm"], rel=1e-12)] * 2
        assert one["norm"] > 0.5, "gradients were clipped"
        assert sum(rank["held"] for rank in ranks) == one["held"]
        alone, sharded = (json.loads((tmp_path / each).read_text()) for each in ("one.json", f"two {name}.json"))
        assert alone["tensors"] == sharded["tensors"]
        prints = alone["fingerprints"]
        assert prints.keys() == sharded["fingerprints"].keys()
        for tensor, found in sharded["fingerprints"].items():
            near = 1e-12 * prints[tensor]["norm"]
            assert found == pytest.approx(prints[tensor], rel=0, abs=near), tensor
        assert any("bias" in tensor and found["norm"] for tensor, found in prints.items()) == (name == "deepseek_v3")
