"""What a training job needs on many devices: memory, traffic between devices, time. Arithmetic without torch.

The layout is that of FSDP2: every block is sharded over all devices of a replica, and experts may be spread over
devices. A model of transformers is described by its tensors, which needs torch and transformers.
"""
