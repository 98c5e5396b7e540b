"""The attention backend that a log names is compared with what vLLM's own selector answered."""

from __future__ import annotations

import os
import re
from pathlib import Path

from workshop.engine import log as engine_log
from workshop.engine.reconcile.case import make_case
from workshop.engine.reconcile.compare import reconcile
from workshop.errors import WorkshopError

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "workshop/data/logs", ROOT / "tests/engine/data")
H100 = FOLDERS[0] / "llama-3.1-8b_vllm-0.32.0_h100.log"
WORKER = "(EngineCore pid=1666) INFO 11-23 01:42:43 [gpu_worker.py:1034]"
ARGUMENTS = (
    "(APIServer pid=1) INFO 11-23 01:42:00 [api_utils.py:273] "
    "non-default args: {'attention_backend': 'TRITON_ATTN'}"
)


def rows(text: str, gpu: str = "h100") -> list[str]:
    result = reconcile(engine_log.parse(text), None, gpu)
    return [row.reason for row in result.rows if row.quantity == "attention backend"]


def test_no_log_of_a_gpu_differs_from_the_table():
    """35 logs of H100 and H200 were compared, of the repository and of four H100 with 0.33.0."""
    more = os.environ.get("WORKSHOP_MEASURED_LOGS")
    folders = [*FOLDERS, Path(more)] if more else FOLDERS
    compared = 0
    for file in (file for folder in folders for file in folder.rglob("*.log")):
        gpu = re.search("h[12]00", str(file.relative_to(file.parents[1])))
        try:
            log = engine_log.read(file)
            make_case(log, None, gpu and gpu[0])
        except WorkshopError:
            continue
        if log.attention_backends:
            compared += 1
            assert not [
                row
                for row in reconcile(log, None, gpu and gpu[0]).rows
                if "attention" in row.quantity
            ], file.name
    assert compared >= 20


def test_the_log_s_backends_are_read():
    log = engine_log.read(H100)
    assert log.attention_backends == ["FLASH_ATTN"]
    assert log.possible_attention_backends == ["FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION"]
    older = (
        "INFO 01-05 10:00:00 [cuda.py:351] Using AttentionBackendEnum.FLASHINFER attention backend"
    )
    assert engine_log.parse(f"{older}\n{H100.read_text()}").attention_backends[0] == "FLASHINFER"


def test_another_backend_is_a_row_with_its_likely_reason(subtests):
    for changes, gpu, reason in [
        ([("Using FLASH_ATTN attention", "Using TRITON_ATTN attention")], "h100", "a setting"),
        (
            [
                ("Using FLASH_ATTN attention", "Using TRITON_ATTN attention"),
                (WORKER, f"{ARGUMENTS}\n{WORKER}"),
            ],
            "h100",
            "its command asks for it",
        ),
        (
            [
                ("Using FLASH_ATTN attention", "Using TRITON_ATTN attention"),
                ("['FLASH_ATTN', 'TRITON_ATTN'", "['TRITON_ATTN'"),
            ],
            "h100",
            "did not import there",
        ),
        (
            [("Using FLASH_ATTN attention", "Using TRITON_ATTN attention"), ("0.32.0", "0.31.0")],
            "h100",
            "the log is of vLLM 0.31.0",
        ),
        # vLLM takes FlashInfer on a B200; its log shows a machine without
        ([("79.18", "178.35"), ("79.25", "178.35")], "b200", "FlashInfer is not installed there"),
    ]:
        with subtests.test(str(changes)):
            text = H100.read_text()
            for old, new in changes:
                text = text.replace(old, new)
            (row,) = rows(text, gpu)
            assert reason in row and "speed and memory may differ" in row


def test_what_the_selector_was_not_asked_gives_no_row():
    text = H100.read_text().replace("Using FLASH_ATTN attention", "Using ROCM_ATTN attention")
    assert rows(text.replace("79.18", "191.98").replace("79.25", "191.98"), "mi300x") == []
