from __future__ import annotations

from pathlib import Path

from etude.verbs.text_sources import explain_encoding


def test_the_line_and_the_way_to_convert_it_are_named(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"plain\n" * 5_000 + "고양이가 앉았다\n".encode("cp949"))  # beyond what a reader decodes at once
    assert f"{path}, line 5001, is not UTF-8." in str(explain_encoding(path))
    path.write_bytes("고양이가 앉았다\n".encode("cp949"))
    told = str(explain_encoding(path))
    assert 'It reads as CP949 (Korean Windows): save it as UTF-8 ("CSV UTF-8" in a spreadsheet)' in told
    assert "or 'iconv -f CP949 -t UTF-8" in told and "--encoding" not in told
    named = str(explain_encoding(path, has_option=True))
    assert "It reads as CP949 (Korean Windows): name that, --encoding cp949, or save it as UTF-8" in named
    path.write_bytes(b"\x80")
    assert str(explain_encoding(path)).endswith("line 1, is not UTF-8. Convert it.")
    assert "Standard input is not UTF-8" in str(explain_encoding(None))
    assert "--encoding cp949" in str(explain_encoding(None, has_option=True))
