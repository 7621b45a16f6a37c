import pytest

from expertp.training import speed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_speed_of_matrix_products_is_measured_once(dtype, monkeypatch):
    monkeypatch.setattr(speed, "PRODUCT_SECONDS", 0.01)
    speed._measured.cache_clear()
    found = speed.product_speed("cpu", dtype)
    assert 1e7 < found < 1e14
    assert speed.product_speed("cpu", dtype) == found
    speed._measured.cache_clear()
