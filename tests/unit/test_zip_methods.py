"""Compression methods of archives: only stored and deflated skills and Office documents are read."""

import zipfile

import pytest

from conversations.files import document_reader
from core.errors import InvalidValue
from skills.bundle import read_archive
from tests.support.documents import docx, pptx
from tests.support.skills import skill_files, unzipped, zipped

OTHERS = [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]
DOCUMENTS = {"docx": docx("Herons"), "pptx": pptx("Herons")}


@pytest.mark.parametrize("method", OTHERS)
def test_skills_with_other_methods_are_refused(method: int) -> None:
    with pytest.raises(InvalidValue, match="neither stored nor compressed with deflate"):
        read_archive(zipped(skill_files(), method=method), param="files")


def test_stored_skills_are_read() -> None:
    assert read_archive(zipped(skill_files(), method=zipfile.ZIP_STORED), param="files").files == len(skill_files())


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS.keys())
@pytest.mark.parametrize("method", OTHERS)
def test_office_documents_with_other_methods_are_refused(method: int, document: bytes) -> None:
    packed = zipped(unzipped(document), method=method)
    assert document_reader.read("office", packed) == document_reader.COMPRESSED


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_stored_office_documents_are_read(document: bytes) -> None:
    packed = zipped(unzipped(document), method=zipfile.ZIP_STORED)
    assert b"Herons" in document_reader.read("office", packed)
