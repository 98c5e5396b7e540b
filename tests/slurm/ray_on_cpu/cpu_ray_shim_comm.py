"""Test only: ranks on different nodes share no memory, although each numbers its own from the same name."""

from __future__ import annotations

import socket

import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class NodeAwareCpuCommunicator(CpuCommunicator):
    def _all_group_ranks_share_shm_group_name(self) -> bool:
        names = [None] * self.world_size
        dist.all_gather_object(names, socket.gethostname(), group=self.cpu_group)
        return len(set(names)) == 1 and super()._all_group_ranks_share_shm_group_name()
