"""Compare the students of a teacher: table.md, table.json and linearize.svg."""

from __future__ import annotations

from pathlib import Path

from ...scoring.pictures.scores import students_figure
from ...scoring.table import Column, Record, Table, page
from ...support.files import read_json, write_json, write_text

ORDER, RESULT = "order.json", "result.json"
KNOWN = ("swaps", "first_layer")  # keys of ORDER; files without first_layer count layers from 0, so their names differ
UNIT = "KL(teacher || student), nats per token"
UNIT_OF_SPEECH = "difference of log-mel frames, per decoder step"
NEEDED = ("attention", "plan", "kept", "replaced", "distance", "loss", "updates", "seconds", "task")


def write_report(out: Path) -> str:
    """Write table.md, table.json and linearize.svg for all students in `out`; return the table with its notes.

    Without students it writes nothing and returns "".
    """
    students = [read_json(path, NEEDED) for path in sorted(out.glob(f"keep*/{RESULT}"))]
    if not students:
        return ""
    students.sort(key=lambda student: len(student["kept"]))
    order = read_json(out / ORDER, KNOWN) if (out / ORDER).is_file() else None
    unit = UNIT_OF_SPEECH if students[0]["task"] == "text_to_speech" else UNIT
    content = {"unit": unit, "order": order and order["swaps"], "students": students}
    picture = students_figure(content).save(out / "linearize.svg")
    parts = [
        Table(students, COLUMNS).markdown(),
        f"Distance: {unit}, on validation data. Loss: of validation, as in the teacher's training. Time: of "
        "updates, and beside other work if there was any.",
        "" if order is None else f"Replaced in this order: {', '.join(name for name, _ in order['swaps'])}.",
        f"`{students[0]['signature']}`",
    ]
    write_text(out / "table.md", page("# Linearized: " + students[0]["attention"], *parts, picture))
    write_json(out / "table.json", content)
    return page(*parts)


def _updates(student: Record) -> str:
    updates = {name: count for name, count in student["updates"].items() if name != "teacher"}
    return " + ".join(map(str, updates.values())) + f" (teacher {student['updates']['teacher']})"


COLUMNS = [
    Column("kept", of=lambda student: ", ".join(student["kept"]) or "none"),
    Column("replaced", of=lambda student: len(student["replaced"])),
    Column("distance.aligned", "distance, aligned", ".3f"),
    Column("distance.distilled", "distilled", ".3f"),
    Column("loss.teacher", "loss, teacher", ".3f"),
    Column("loss.student", "student", ".3f"),
    Column("updates", of=_updates),
    Column("minutes", form=".3f", of=lambda student: sum(student["seconds"].values()) / 60 or None),  # without times
]
