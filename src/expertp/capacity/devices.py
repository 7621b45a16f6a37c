"""Devices: peak speed, memory and links, as their vendors state them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import Field

from expertp.config import load_spec
from expertp.errors import InputError, did_you_mean
from expertp.spec import Dtype, Finite, Spec

# Share of the peak that matrix products of training reach; an assumption, which DeepSeek-V3's published hours support.
EFFICIENCY = 0.35
# Share of a device's memory that tensors can fill; the rest is for the driver, libraries and fragments.
USABLE = 0.9


class Device(Spec):
    """One kind of device, and how nodes of it are connected."""

    bfloat16: Finite = Field(gt=0, description="peak of dense bfloat16 matrix products, in TFLOP/s")
    float32: Finite = Field(gt=0, description="peak of float32 matrix products, in TFLOP/s")
    memory: Finite = Field(gt=0, description="memory, in GiB")
    node: int = Field(8, gt=0, description="devices per node")
    link: Finite = Field(gt=0, description="bytes that a device sends to others of its node, in GB/s")
    network: Finite = Field(gt=0, description="bytes that a device sends to other nodes, in GB/s")

    def peak(self, dtype: Dtype) -> float:
        """Return the peak in FLOP/s of a compute dtype."""
        if dtype == "float64":
            raise InputError("the table of devices has no speed in float64; set train.dtype to bfloat16 or float32")
        return 1e12 * (self.bfloat16 if dtype == "bfloat16" else self.float32)

    @property
    def usable_bytes(self) -> float:
        """Bytes of memory that tensors can fill."""
        return USABLE * self.memory * 2**30


# Vendors add up both directions of a link; here it is one direction. Network: one 400 Gb/s adapter per device (A100:
# 200, L40S: 100, RTX 4090: 10), which is an assumption about the cluster.
# fmt: off
DEVICES: Mapping[str, Device] = MappingProxyType({
    "a100":    Device(bfloat16=312,  float32=19.5,  memory=80,  link=300, network=25),    # SXM, 80 GB
    "h100":    Device(bfloat16=989,  float32=67,    memory=80,  link=450, network=50),    # SXM
    "h800":    Device(bfloat16=989,  float32=67,    memory=80,  link=200, network=50),    # H100 with fewer links
    "h200":    Device(bfloat16=989,  float32=67,    memory=141, link=450, network=50),    # SXM
    "b200":    Device(bfloat16=2250, float32=75,    memory=180, link=900, network=50),    # HGX
    "mi300x":  Device(bfloat16=1307, float32=163.4, memory=192, link=448, network=50),    # 8 devices, all connected
    "l40s":    Device(bfloat16=362,  float32=91.6,  memory=48,  link=32,  network=12.5),  # PCIe 4
    "rtx4090": Device(bfloat16=165,  float32=82.6,  memory=24,  link=32,  network=1.25),  # PCIe 4
})
# fmt: on


def find_device(name: str) -> Device:
    """Return a device of the table, or the one that a YAML file describes with the same keys."""
    if name in DEVICES:
        return DEVICES[name]
    if name.endswith((".yaml", ".yml")):
        return load_spec(Device, Path(name))
    raise InputError(
        f"unknown device '{name}'; {did_you_mean(name, DEVICES)} or give a YAML file with "
        f"{', '.join(Device.model_fields)}"
    )
