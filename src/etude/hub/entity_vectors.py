"""Export of a run on a graph: text files of the vectors of its entities and relations."""

from __future__ import annotations

from pathlib import Path

from etude.errors import UserError
from etude.graph.entity_table import load_entity_table, write_entity_file


def export_entity_vectors(run: str | Path, path: str | Path) -> list[Path]:
    """Write the vectors of a finished run: entities to `path`, relations beside it (x.vec and x.relations.vec)."""
    table, path = load_entity_table(run), Path(path)
    relation_path = path.with_name(f"{path.stem}.relations{path.suffix}")
    for file in (path, relation_path):
        if file.exists():
            raise UserError(f"{file} exists already. Choose another name with -o.")
    write_entity_file(table.names, table.vectors, path)
    try:
        write_entity_file(table.relation_names, table.relations, relation_path)
    except BaseException:  # both files or none
        path.unlink(missing_ok=True)
        raise
    return [path, relation_path]
