"""PDF pages: frames, sizes, labels, passwords, damage."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pypdf
import pypdfium2
import pytest
from PIL import Image

from mdiff_adapters.errors import (
    CorruptDocumentError,
    EmptyDocumentError,
    InputTooLargeError,
    PageError,
    PasswordError,
    PasswordRequiredError,
    WrongPasswordError,
)
from mdiff_adapters.sources import SourceLimits, open_source
from mdiff_adapters.sources.pdf import PDFIUM_LOCK, iso_date
from mdiff_adapters.testing import sample_pdf

PdfMaker = Callable[..., bytes]
# 72 dpi: a pixel a point, so that a square's pixels are its coordinates.
ONE_PX_A_POINT = SourceLimits(dpi=72)


def ink_box(image: Image.Image) -> tuple[int, int, int, int]:
    """The box around dark pixels: x0, y0, x1, y1."""
    rows, columns = np.nonzero(np.asarray(image.convert("L")) < 128)
    return (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)


def test_star_01_a_pdf_without_pages(make_pdf: PdfMaker) -> None:
    with pytest.raises(EmptyDocumentError, match="no pages") as caught:
        open_source(make_pdf([]), name="empty.pdf")
    assert "Success" not in str(caught.value)
    assert str(caught.value).startswith("empty.pdf: ")
    assert caught.value.__cause__ is not None


def test_a_pdf_without_pages_is_told_from_the_document_before_it(make_pdf: PdfMaker) -> None:
    """PDFium keeps the error of the last document that failed."""
    for before, kind in (
        (encrypted("a", "b"), PasswordRequiredError),
        (b"%PDF-1.7 nothing", CorruptDocumentError),
    ):
        with pytest.raises(kind):
            open_source(before)
        with pytest.raises(EmptyDocumentError):
            open_source(make_pdf([]))


def test_star_02_a_page_that_does_not_exist_costs_only_itself(make_pdf: PdfMaker) -> None:
    with open_source(make_pdf(["/MediaBox [0 0 200 200]", ""]), name="two.pdf") as document:
        assert document.num_pages == 2
        assert document.load(0).image.size == (556, 556)
        with pytest.raises(PageError, match=r"two\.pdf, page 2: .*the other pages are kept"):
            document.load(1)
        assert document.label(1) == "2"


def encrypted(user: str, owner: str) -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(sample_pdf(1)))
    writer.encrypt(user_password=user, owner_password=owner, algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_star_03_passwords() -> None:
    locked = encrypted("geheim-7", "owner")
    with pytest.raises(PasswordRequiredError, match="password="):
        open_source(locked)
    with pytest.raises(WrongPasswordError) as caught:
        open_source(locked, password="falsch-9")
    for password in ("falsch-9", "geheim-7"):
        assert password not in repr(caught.value) + str(caught.value)
        assert password not in str(caught.value.__cause__)
    assert isinstance(caught.value, PasswordError)
    assert not issubclass(CorruptDocumentError, PasswordError)
    with open_source(locked, password="geheim-7") as document:
        assert document.load(0).image.size == (400, 400)
        assert "geheim-7" not in f"{document!r} {document.metadata}"
    with open_source(encrypted("", "owner")) as document:
        assert document.num_pages == 1
    with open_source(sample_pdf(1), password="not needed") as document:
        assert document.num_pages == 1


def test_star_04_a_giant_page_is_refused_before_it_is_drawn(make_pdf: PdfMaker) -> None:
    data = make_pdf(["/MediaBox [0 0 200000 200000]", "/MediaBox [0 0 200 200]"])
    process = psutil.Process()
    before = process.memory_info().rss
    with open_source(data, name="giant.pdf") as document:
        with pytest.raises(InputTooLargeError, match=r"giant\.pdf, page 1: .*200000|2e\+05"):
            document.load(0)
        assert document.load(1).image.size == (556, 556)
    assert process.memory_info().rss - before < 300 * 2**20


def test_a_large_page_is_drawn_at_the_resolution_that_fits(make_pdf: PdfMaker) -> None:
    limits = SourceLimits(max_pixels=1_000_000)
    with open_source(make_pdf(["/MediaBox [0 0 1200 600]"]), limits=limits) as document:
        page = document.load(0)
    assert 950_000 < page.image.width * page.image.height <= 1_000_000
    assert page.size_pt == (1200, 600)
    assert page.dpi == pytest.approx(84.8, abs=0.5)
    [warning] = page.warnings
    assert "85 dpi in place of 200" in warning.message


def test_a_long_thin_page_stays_within_the_longest_side(make_pdf: PdfMaker) -> None:
    with open_source(make_pdf(["/MediaBox [0 0 20 14400]"])) as document:
        page = document.load(0)
    assert page.image.height <= 30_000
    assert page.dpi == pytest.approx(150, abs=2)


@pytest.mark.parametrize(
    ("entries", "size", "square"),
    [
        ("/MediaBox [0 0 200 300]", (200, 300), (100, 180, 120, 200)),
        # The frame is the crop box inside the media box, its corner the origin.
        ("/MediaBox [0 0 200 300] /CropBox [50 20 150 180]", (100, 160), (50, 60, 70, 80)),
        ("/MediaBox [0 0 200 300] /CropBox [-50 -50 400 400]", (200, 300), (100, 180, 120, 200)),
        ("/MediaBox [-100 -50 200 250]", (300, 300), (200, 130, 220, 150)),
        ("/MediaBox [200 300 0 0]", (200, 300), (100, 180, 120, 200)),
    ],
)
def test_star_05_boxes_of_the_page_are_the_frame(
    make_pdf: PdfMaker,
    entries: str,
    size: tuple[int, int],
    square: tuple[int, int, int, int],
) -> None:
    with open_source(make_pdf([entries]), limits=ONE_PX_A_POINT) as document:
        page = document.load(0)
    assert page.image.size == size
    assert page.size_pt == size
    assert ink_box(page.image) == square


def test_a_crop_box_outside_the_page_fails_that_page(make_pdf: PdfMaker) -> None:
    outside = "/MediaBox [0 0 200 200] /CropBox [300 300 400 400]"
    with open_source(make_pdf([outside, "/MediaBox [0 0 200 200]"])) as document:
        with pytest.raises(PageError, match="page 1: the page has no area"):
            document.load(0)
        document.load(1)


@pytest.mark.parametrize(
    ("rotate", "rotation", "size", "square"),
    [
        (0, 0, (200, 300), (100, 180, 120, 200)),
        (90, 90, (300, 200), (100, 100, 120, 120)),
        (180, 180, (200, 300), (80, 100, 100, 120)),
        (270, 270, (300, 200), (180, 80, 200, 100)),
        (-90, 270, (300, 200), (180, 80, 200, 100)),
        (450, 90, (300, 200), (100, 100, 120, 120)),
    ],
)
def test_star_06_rotated_pages_are_upright_in_their_own_frame(
    make_pdf: PdfMaker,
    rotate: int,
    rotation: int,
    size: tuple[int, int],
    square: tuple[int, int, int, int],
) -> None:
    data = make_pdf([f"/MediaBox [0 0 200 300] /Rotate {rotate}"])
    with open_source(data, limits=ONE_PX_A_POINT) as document:
        page = document.load(0)
    assert (page.image.size, page.size_pt, page.rotation) == (size, size, rotation)
    assert ink_box(page.image) == square


def test_metadata_and_labels() -> None:
    with open_source(sample_pdf(4, roman=2)) as document:
        assert [document.label(i) for i in range(4)] == ["i", "ii", "1", "2"]
        assert document.load(1).label == "ii"
        assert document.metadata == {
            "title": "Sample",
            "author": "A. Writer",
            "creator": "sample_pdf",
            "producer": "mdiff_adapters.testing",
            "creationdate": "2024-01-02T03:04:05+00:00",
        }
    with open_source(sample_pdf(1, info={})) as document:
        assert document.metadata == {}
        assert document.label(0) == "1"


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("D:20240131120000+01'00'", "2024-01-31T12:00:00+01:00"),
        ("D:20240131120000-08'30", "2024-01-31T12:00:00-08:30"),
        ("D:20240131120000Z", "2024-01-31T12:00:00+00:00"),
        ("D:20240131120000Z00'00'", "2024-01-31T12:00:00+00:00"),
        ("20240131", "2024-01-31T00:00:00"),
        ("D:2024", "2024-01-01T00:00:00"),
        ("D:20241331", None),
        ("D:00000000", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_dates_become_iso_or_nothing(text: str, iso: str | None) -> None:
    assert iso_date(text) == iso


def test_link_frames_are_left_out_and_form_fields_are_drawn(make_pdf: PdfMaker) -> None:
    def annotated(kind: str) -> bytes:
        border = f"/Subtype /{kind} /Rect [20 20 60 60] /Border [0 0 3] /C [0 0 0]"
        return make_pdf([f"/MediaBox [0 0 200 200] /Annots [<< /Type /Annot {border} >>]"])

    with open_source(annotated("Link"), limits=ONE_PX_A_POINT) as document:
        assert ink_box(document.load(0).image) == (100, 80, 120, 100)
    with open_source(annotated("Square"), limits=ONE_PX_A_POINT) as document:
        assert ink_box(document.load(0).image)[0] < 60


def test_the_lock_is_free_while_the_caller_looks_at_a_page() -> None:
    taken = []

    def take() -> None:
        with PDFIUM_LOCK:
            taken.append(True)

    with open_source(sample_pdf(2)) as document:
        document.load(0)
        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        thread.join(timeout=5)
    assert taken == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_a_page_is_rendered_can_render() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with PDFIUM_LOCK:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that waits for a thread it does not have
        with open_source(sample_pdf(1)) as document:
            document.load(0)
        os._exit(0)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        thread.join()


def test_threads_render_the_same_pages() -> None:
    data = sample_pdf(6)
    results: dict[int, list[bytes]] = {}

    def work(number: int) -> None:
        with open_source(data) as document:
            results[number] = [document.load(i).image.tobytes() for i in document.page_indices]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(pages == results[0] for pages in results.values())


def test_the_image_outlives_the_document() -> None:
    with open_source(sample_pdf(1)) as document:
        page = document.load(0)
    assert np.asarray(page.image).min() < 128


def test_the_error_code_is_understood_without_the_attribute(
    make_pdf: PdfMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pypdfium2 4 raises errors that carry only a text."""
    real = pypdfium2.PdfDocument

    def old(*args: object, **options: object) -> object:
        try:
            return real(*args, **options)
        except pypdfium2.PdfiumError as error:
            raise pypdfium2.PdfiumError(str(error)) from None

    monkeypatch.setattr(pypdfium2, "PdfDocument", old)
    with pytest.raises(PasswordRequiredError):
        open_source(encrypted("a", "b"))
    with pytest.raises(EmptyDocumentError):
        open_source(make_pdf([]))


def test_a_count_of_99999_opens_at_once(make_pdf: PdfMaker) -> None:
    start = time.process_time()
    with open_source(make_pdf(["/MediaBox [0 0 99 99]"], count=99_999)) as document:
        assert document.num_pages == 99_999
        document.load(0)
        with pytest.raises(PageError):
            document.load(98_765)
    assert time.process_time() - start < 2


def test_the_real_files_open_or_say_why(shared_dir: Path) -> None:
    folder = shared_dir / "realdocs"
    with pytest.raises(EmptyDocumentError):
        open_source(folder / "poppler-395-0-fuzzed.pdf")
    with (
        open_source(folder / "poppler-85140-0.pdf") as document,
        pytest.raises(InputTooLargeError),
    ):
        document.load(0)
    with pytest.raises(PasswordRequiredError):
        open_source(folder / "user-password_asdfzxcv.pdf")
    with open_source(folder / "user-password_asdfzxcv.pdf", password="asdfzxcv") as document:
        document.load(0)
    with open_source(folder / "owner-password.pdf") as document:
        document.load(0)
    with open_source(folder / "rotated_scan_letter.pdf") as document:
        page = document.load(0)
        assert (page.rotation, page.image.height > page.image.width) == (90, True)
    with open_source(folder / "no_contents.pdf") as document:
        assert document.load(0).image.convert("L").getextrema() == (255, 255)
