"""Compare the students of a teacher: table.md, table.json and linearize.png."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tabulate import tabulate

from ...scoring.pictures.linearize import draw_order
from ...support.files import read_json, write_json, write_text

ORDER, RESULT = "order.json", "result.json"
KNOWN = ("swaps", "first_layer")  # keys of ORDER; files without first_layer count layers from 0, so their names differ
UNIT = "KL(teacher || student), nats per token"
UNIT_OF_SPEECH = "difference of log-mel frames, per decoder step"
NEEDED = ("attention", "plan", "kept", "replaced", "distance", "loss", "updates", "seconds", "task")


def write_report(out: Path) -> list[str]:
    """Write table.md, table.json and linearize.png for all students in `out`; return the table's lines.

    Without students it writes nothing and returns no lines.
    """
    students = [read_json(path, NEEDED) for path in sorted(out.glob(f"keep*/{RESULT}"))]
    if not students:
        return []
    students.sort(key=lambda student: len(student["kept"]))
    order = read_json(out / ORDER, KNOWN) if (out / ORDER).is_file() else None
    unit = UNIT_OF_SPEECH if students[0]["task"] == "text_to_speech" else UNIT
    lines = [tabulate([_row(student) for student in students], headers="keys", tablefmt="github", floatfmt=".3f"), ""]
    lines += [
        f"Distance: {unit}, on validation data. Loss: of validation, as in the teacher's training. Time: of "
        "updates, and beside other work if there was any.",
        *([] if order is None else [f"Replaced in this order: {', '.join(name for name, _ in order['swaps'])}."]),
        "",
        *(f"`{student['signature']}`" for student in students[:1]),
    ]
    write_text(out / "table.md", "\n".join(["# Linearized: " + students[0]["attention"], "", *lines]) + "\n")
    write_json(out / "table.json", {"unit": unit, "order": order and order["swaps"], "students": students})
    points = {
        len(student["replaced"]): (student["distance"]["aligned"], student["distance"]["distilled"])
        for student in students
    }
    draw_order(order["swaps"] if order else [], points, unit, out / "linearize.png")
    return lines


def _row(student: dict[str, Any]) -> dict[str, Any]:
    updates = {name: count for name, count in student["updates"].items() if name != "teacher"}
    return {
        "kept": ", ".join(student["kept"]) or "none",
        "replaced": len(student["replaced"]),
        "distance, aligned": student["distance"]["aligned"],
        "distilled": student["distance"]["distilled"],
        "loss, teacher": student["loss"]["teacher"],
        "student": student["loss"]["student"],
        "updates": " + ".join(map(str, updates.values())) + f" (teacher {student['updates']['teacher']})",
        "minutes": sum(student["seconds"].values()) / 60 or None,  # None if the logs have no times
    }
