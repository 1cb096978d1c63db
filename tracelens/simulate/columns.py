"""Columns that every export fills alike: constants of kernels, memory kinds, GPUs, short names."""

from __future__ import annotations

from typing import Any

DRIVER = "580.95.05"


def short_name(name: str) -> str:
    """The name without return type, namespaces, template arguments and parameters, as nsys's shortName."""
    if name.startswith("std::enable_if") and "::type " in name:
        # the return type, which nsys prints with a bracket too few
        name = name.split("::type ", 1)[1]
    depth = 0
    kept: list[str] = []
    for char in name.replace("(anonymous namespace)", ""):
        if char == "<":
            depth += 1
        elif char == ">" and depth:
            depth -= 1
        elif char == "(" and depth == 0 and kept:
            break
        elif depth == 0:
            kept.append(char)
    words = "".join(kept).split("::")[-1].split()
    return words[-1] if words else name


def kernel_constants() -> dict[str, Any]:
    """Columns of a kernel row that nothing here varies."""
    return {
        "launchType": 1,
        "cacheConfig": 1,
        "registersPerThread": 64,
        "staticSharedMemory": 0,
        "dynamicSharedMemory": 0,
        "localMemoryPerThread": 0,
        "localMemoryTotal": 0,
        "gridId": 0,
        "sharedMemoryExecuted": 32_768,
        "sharedMemoryLimitConfig": 0,
        "clusterX": 0,
        "clusterY": 0,
        "clusterZ": 0,
        "tensorSizeMinusOneElements": "",
    }


def copy_memory_kinds(kind: int) -> tuple[int, int]:
    """Source and target memory kind of a copy: 1 pinned host, 2 device."""
    return {1: (1, 2), 2: (2, 1), 8: (2, 2), 9: (1, 1), 10: (2, 2)}[kind]


def gpu_uuid(gpu: int) -> str:
    """A made-up but stable uuid, without the GPU- prefix, as exports write it."""
    return f"5c9a5380-d76d-414b-3975-{gpu:012x}"


def gpu_row(gpu: int, name: str, uuid: str, bus: str | None = None) -> dict[str, Any]:
    """A TARGET_INFO_GPU row."""
    return {
        "vmId": 1 << 48,
        "id": gpu,
        "name": name,
        "busLocation": bus or f"0000:{0x18 + gpu:02x}:00.0",
        "isDiscrete": 1,
        "l2CacheSize": 52_428_800,
        "totalMemory": 85_045_084_160,
        "memoryBandwidth": 3_352_320_000_000,
        "clockRate": 1_980_000_000,
        "smCount": 132,
        "uuid": uuid,
        "chipName": "GH100",
        "cuDevice": gpu,
        "threadsPerWarp": 32,
        "computeMajor": 9,
        "computeMinor": 0,
        "smMajor": 9,
        "smMinor": 0,
    }


def old_gpu_row(device: int, name: str, pid: int | None, bus: str | None = None) -> dict[str, Any]:
    """A TARGET_INFO_CUDA_GPU row, from before exports carried metadata."""
    return {
        "vmId": 1 << 48,
        "name": name,
        "pciBusId": bus or f"0000:{0x18 + device:02x}:00.0",
        "globalMemorySize": 85_045_084_160,
        "numThreadsPerWarp": 32,
        "numMultiprocessors": 132,
        "computeCapabilityMajor": 9,
        "deviceId": device,
        "pid": pid,
    }
