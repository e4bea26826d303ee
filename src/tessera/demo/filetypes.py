"""What a file is, by its first bytes and by its name. A table of our own: the system's differ."""

from __future__ import annotations

from typing import Final

TEXT: Final = "text"
BINARY: Final = "binary"
EMPTY: Final = "empty"

_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF87a", "GIF image"),
    (b"GIF89a", "GIF image"),
    (b"%PDF-", "PDF"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"PK\x05\x06", "ZIP archive"),
    (b"\x1f\x8b", "gzip archive"),
    (b"BZh", "bzip2 archive"),
    (b"\xfd7zXZ\x00", "xz archive"),
    (b"\x28\xb5\x2f\xfd", "zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "7z archive"),
    (b"SQLite format 3\x00", "SQLite database"),
    (b"\x7fELF", "ELF program"),
    (b"\xcf\xfa\xed\xfe", "Mach-O program"),
    (b"MZ", "Windows program"),
    (b"\x00asm", "WebAssembly"),
    (b"OggS", "Ogg media"),
    (b"ID3", "MP3 audio"),
    (b"fLaC", "FLAC audio"),
    (b"wOF2", "WOFF2 font"),
    (b"wOFF", "WOFF font"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_INSIDE: Final = {b"WEBP": "WebP image", b"WAVE": "WAV audio", b"AVI ": "AVI video"}
"""RIFF files say at byte 8 what they are."""

_SUFFIXES: Final = {
    "bash": "shell script",
    "c": "C source",
    "cc": "C++ source",
    "cfg": "configuration",
    "conf": "configuration",
    "cpp": "C++ source",
    "css": "CSS",
    "csv": "CSV",
    "go": "Go source",
    "h": "C header",
    "hpp": "C++ header",
    "htm": "HTML",
    "html": "HTML",
    "ini": "configuration",
    "ipynb": "notebook",
    "java": "Java source",
    "js": "JavaScript",
    "json": "JSON",
    "jsonl": "JSON lines",
    "jsx": "JavaScript",
    "log": "log",
    "lua": "Lua source",
    "md": "Markdown",
    "mk": "makefile",
    "pdf": "PDF",
    "php": "PHP source",
    "pl": "Perl source",
    "po": "translation",
    "proto": "protocol definition",
    "py": "Python source",
    "pyi": "Python source",
    "rb": "Ruby source",
    "rs": "Rust source",
    "rst": "reStructuredText",
    "sh": "shell script",
    "sql": "SQL",
    "svg": "SVG image",
    "toml": "TOML",
    "ts": "TypeScript",
    "tsv": "CSV",
    "tsx": "TypeScript",
    "txt": TEXT,
    "xml": "XML",
    "yaml": "YAML",
    "yml": "YAML",
}
_NAMES: Final = {
    "dockerfile": "container file",
    "license": TEXT,
    "makefile": "makefile",
    "readme": TEXT,
}
_INTERPRETERS: Final = {
    "python": "Python source",
    "sh": "shell script",
    "bash": "shell script",
    "perl": "Perl source",
    "node": "JavaScript",
}


def by_magic(start: bytes) -> str | None:
    """What the first bytes say, if they say anything."""
    for magic, name in _MAGIC:
        if start.startswith(magic):
            return name
    return _INSIDE.get(start[8:12]) if start.startswith(b"RIFF") else None


def by_name(path: str, start: bytes) -> str:
    """What a text file is: by its suffix, its name, or the interpreter that it asks for."""
    name = path.rpartition("/")[2].lower()
    stem, dot, suffix = name.rpartition(".")
    if dot and stem and suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    return _NAMES.get(name) or _by_interpreter(start) or TEXT


def _by_interpreter(start: bytes) -> str | None:
    if not start.startswith(b"#!"):
        return None
    words = start[2:].split(b"\n", 1)[0].decode("utf-8", "replace").split()
    # "/usr/bin/env -S python3 -u": the first word after env that is no option.
    programs = [word.rpartition("/")[2].rstrip("0123456789.") for word in words if not word.startswith("-")]
    wanted = programs[1:2] if programs[:1] == ["env"] else programs[:1]
    return _INTERPRETERS.get(wanted[0]) if wanted else None
