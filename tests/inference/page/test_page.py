"""The page of a run in a real browser, opened from disk; and what no page is made of."""

import base64
import io
import re
import resource
import runpy
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.exporting import trained_run
from helpers.levels import quick, sampled
from helpers.running import ROOT, write_image_folder
from PIL import ExifTags, Image

from vitrine import compose, load_run
from vitrine.cli.page import main
from vitrine.config.serialize import to_plain
from vitrine.data.datasets import load_dataset
from vitrine.data.decode import Decoder
from vitrine.errors import RunError
from vitrine.inference.page.page import sample_images, write_page
from vitrine.models import VisionTransformer
from vitrine.runs import RunRecord

SMALLEST_TARGET = 24  # pixels, WCAG 2.2, 2.5.8


def write_run(parent: Path, *overrides: str, classes: Sequence[str] = "0123456789", status="finished") -> RunRecord:
    """A run folder whose model has random weights, larger than they start, so that its answers differ."""
    config = compose(["model=vit_nano", *overrides])
    record = RunRecord.create(parent, "run")
    record.update(id=record.name, status=status, classes=list(classes))
    record.write_config(to_plain(config))
    record.write_metrics({"test/acc": 0.975, "val/acc": 0.97})
    torch.manual_seed(0)
    model = VisionTransformer(config.model)
    weights = {
        f"model.{name}": values + 0.05 * torch.randn(values.shape) for name, values in model.state_dict().items()
    }
    torch.save({"state_dict": weights, "config": asdict(config)}, record.best)
    return record


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("digits"), "pool=map", "position=rope")


@pytest.fixture(scope="module")
def colour(tmp_path_factory):
    """A run on a folder of colour images, of twelve classes with long names."""
    folder = tmp_path_factory.mktemp("colour")
    names = tuple(f"class {index:02}, a small-leaved lime" for index in range(12))
    write_image_folder(folder / "images", "train", "test", classes=names, size=(44, 36))
    sizes = ["data.image_size=32", "data.num_classes=12", "patch=4"]
    return write_run(folder, "data=imagefolder", f"data.root={folder / 'images'}", *sizes, "pool=cls", classes=names)


@pytest.fixture(scope="module")
def absent(tmp_path_factory):
    """A run on a data set of arrays that is not on this machine."""
    folder = tmp_path_factory.mktemp("absent")
    return write_run(folder, "data=cifar10", f"data.root={folder / 'nowhere'}", classes=list("abcdefghij"))


class OpenPage:
    """A page in the browser, and the errors and requests that it has made beside its own."""

    def __init__(self, browser, path: Path, **options) -> None:
        self.page, self.troubles = browser.new_page(**options), []
        self.page.on("console", lambda message: self.note(message.type in ("error", "warning"), message.text))
        self.page.on("pageerror", lambda error: self.note(True, str(error)))
        own = (path.as_uri(), "blob:", "data:")
        self.page.on("request", lambda request: self.note(not request.url.startswith(own), request.url))
        self.page.goto(path.as_uri())

    def note(self, is_trouble: bool, text: str) -> None:
        if is_trouble:
            self.troubles.append(text)

    def answers(self) -> int:
        return self.page.evaluate("Number(document.body.dataset.answers ?? 0)")

    def wait(self, before: int) -> dict[str, object]:
        """Wait until nothing is computed any more; return the pixels and logits that the page shows."""
        deadline = time.monotonic() + 300
        while self.answers() <= before or self.page.evaluate("Boolean(busy || waiting)"):
            assert time.monotonic() < deadline, f"no answer; {self.problem} {self.troubles}"
            self.page.wait_for_timeout(5)
        return self.page.evaluate("answer && {pixels: [...answer.pixels], logits: [...answer.logits]}")

    def after(self, action) -> dict[str, object]:
        before = self.answers()
        action()
        return self.wait(before)

    def rows(self) -> list[str]:
        return [" ".join(text.split()) for text in self.page.locator("#classes tbody tr").all_inner_texts()]

    @property
    def problem(self) -> str:
        return self.page.locator("#problem").inner_text()


@pytest.fixture(scope="module")
def digits_file(digits):
    return write_page(digits.path).path


@pytest.fixture(scope="module")
def colour_file(colour):
    return write_page(colour.path).path


@pytest.fixture(scope="module")
def digits_page(digits_file, browser):
    """The page of the digits' run, opened once, showing its first test image."""
    opened = OpenPage(browser, digits_file, viewport={"width": 1280, "height": 900})
    opened.wait(0)
    yield opened
    assert opened.troubles == []
    opened.page.close()


@pytest.fixture(scope="module")
def colour_page(colour_file, browser):
    opened = OpenPage(browser, colour_file)
    opened.wait(0)
    yield opened
    assert opened.troubles == []
    opened.page.close()


def logits_of(record: RunRecord, pixels: list[int]) -> np.ndarray:
    """PyTorch's logits for pixels (H * W * C)."""
    run = load_run(record.path)
    image = torch.tensor(pixels, dtype=torch.uint8).view(1, *run.transform.decoder.shape[1:], -1)
    with torch.no_grad():
        return run.model(run.transform.normalised(image.permute(0, 3, 1, 2)))[0].numpy()


def test_the_page_is_written_in_the_run_folder_and_small(digits, capsys):
    main([str(digits.path)])
    page = digits.path / "page.html"
    assert capsys.readouterr().out == f"written to {page} ({page.stat().st_size / 1e6:.3g} MB)\n"
    assert page.stat().st_size < 1_500_000
    half = digits.path / "half.html"
    main([str(digits.path), "--to", str(half), "--dtype", "float16"])
    note = r"float16 changes the logits of the 10 test images in the page by up to 0\.0\d+, and 0 predictions"
    assert re.match(note, capsys.readouterr().out)
    weights = [sum(map(len, re.findall('class="weights">(.*?)<', text.read_text()))) for text in (page, half)]
    assert weights[1] == pytest.approx(weights[0] / 2, abs=4)


COMMANDS = re.findall(
    r"^python (scripts/page\.py outputs/runs/RUN.*?)(?:  +#.*)?$",
    "\n".join((ROOT / page).read_text() for page in ("docs/commands.md", "docs/page.md")),
    re.MULTILINE,
)


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_a_command_of_the_docs_runs(command, digits, colour, tmp_path, monkeypatch, capsys):
    run = colour if "--data-root" in command else digits  # whose data has a folder
    command = command.replace("DIR", str(run.config["data"].get("root")))
    script, *arguments = command.replace("outputs/runs/RUN", str(run.path)).split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [script, *arguments])
    runpy.run_path(str(ROOT / script), run_name="__main__")
    written = Path(re.search(r"written to (\S+) ", capsys.readouterr().out)[1])
    assert written == (Path("digits.html") if "--to" in arguments else run.path / "page.html")
    assert written.read_text().startswith("<!doctype html>")


def test_each_test_image_gives_the_probabilities_of_pytorch(digits, digits_page):
    run = load_run(digits.path)
    samples = sample_images(run)
    assert samples.labels.tolist() == list(range(10))
    logits = run.model(run.transform.normalised(samples.pixels)).detach()
    for index, button in enumerate(digits_page.page.locator("#samples button").all()):
        shown = digits_page.after(button.click)
        assert shown["pixels"] == samples.pixels[index].flatten().tolist()
        assert shown["logits"] == pytest.approx(logits[index].tolist(), abs=1e-3)
        assert button.get_attribute("aria-pressed") == "true"
        probabilities = logits[index].softmax(dim=0)
        for label, row in enumerate(digits_page.rows()):
            name, percent = re.fullmatch(r"(\d)(?: .*)? ([\d.]+) %", row).groups()
            assert (int(name), float(percent)) == (label, pytest.approx(100 * float(probabilities[label]), abs=0.06))
        widths = digits_page.page.evaluate("[...document.querySelectorAll('.bar')].map((bar) => bar.offsetWidth)")
        whole = digits_page.page.evaluate("document.querySelector('#classes td').offsetWidth")
        assert widths == pytest.approx([max(1, whole * float(share)) for share in probabilities], abs=1.5)
        assert digits_page.page.locator("tr.true th").inner_text() == str(index)
        right = "which is right" if probabilities.argmax() == index else f"the true class is \u2068{index}\u2069"
        assert right in digits_page.page.locator("#status").inner_text()


@pytest.mark.whole
@pytest.mark.parametrize("data", ["digits", "examples.shapes.shapes"])
def test_images_and_patches_that_are_not_square_are_answered_and_shown_as_they_are(
    tmp_path, browser, monkeypatch, data
):
    monkeypatch.chdir(ROOT)
    given = [f"data={data}", "data.image_size=[8,12]", "model.patch_size=[2,4]", "position=relative"]
    record = write_run(tmp_path, *given, classes="0123456789" if data == "digits" else ["square", "disc", "cross"])
    run = load_run(record.path, trust=["examples"])
    opened = OpenPage(browser, write_page(record.path, trust=["examples"]).path)
    shown = opened.wait(0)
    samples = sample_images(run).pixels
    assert shown["pixels"] == samples[0].flatten().tolist()
    assert shown["logits"] == pytest.approx(run.model(run.transform.normalised(samples))[0].tolist(), abs=1e-3)
    (tmp_path / "picture.png").write_bytes(picture("L", (30, 40)))
    prepared = run.transform.pixels(tmp_path / "picture.png").flatten().numpy()
    dropped = opened.after(lambda: opened.page.locator("#file").set_input_files(tmp_path / "picture.png"))
    assert np.abs(np.array(dropped["pixels"]) - prepared).max() <= 1
    text = opened.page.locator("body").inner_text()
    assert re.search(r"\b8 \W 12 pixels, 4 \W 3 patches", text)
    size = opened.page.locator("#seen").bounding_box()
    assert size["width"] / size["height"] == pytest.approx(1.5, abs=0.01)
    opened.after(lambda: opened.page.locator("#seen").click(position={"x": size["width"] - 5, "y": size["height"] / 3}))
    assert opened.page.locator("#asker").inner_text() == "The patch in row 2, column 3 attends to:"
    assert opened.troubles == []
    opened.page.close()


@pytest.mark.whole
def test_a_class_whose_name_is_not_utf_8_is_shown_with_its_byte(tmp_path, browser):
    record = write_run(tmp_path, classes=["caf\udce9", *"123456789"])
    opened = OpenPage(browser, write_page(record.path).path)
    (tmp_path / "picture.png").write_bytes(picture("L", (8, 8)))
    opened.after(lambda: opened.page.locator("#file").set_input_files(tmp_path / "picture.png"))
    assert opened.rows()[0].startswith(r"caf\xe9 ")
    opened.page.close()


def test_a_drawing_is_answered_while_it_is_drawn(digits, digits_page):
    page = digits_page.page
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + 50)
    first = digits_page.after(page.mouse.down)
    more = digits_page.after(lambda: page.mouse.move(box["x"] + 90, box["y"] + 230, steps=9))
    page.mouse.up()
    assert more["pixels"] != first["pixels"]
    assert more["logits"] == pytest.approx(logits_of(digits, more["pixels"]), abs=1e-3)
    assert page.locator("#samples [aria-pressed=true]").count() == 0
    assert page.locator("tr.true").count() == 0
    assert digits_page.after(page.get_by_role("button", name="Clear").click) is None
    assert digits_page.rows() == []
    assert page.locator("#status").inner_text() == "Nothing is drawn yet."
    digits_page.after(page.locator("#samples button").first.click)


def test_the_keyboard_reaches_everything_and_draws(digits_page):
    page = digits_page.page
    page.locator("#theme").focus()
    reached = []
    for _ in range(18):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.dataset.label"))
    assert reached[:4] == ["pad", "clear", "file", "seen"]
    assert reached[4:15] == [*map(str, range(10)), "block"]
    page.locator("#pad").focus()
    drawn = digits_page.after(lambda: [page.keyboard.press("Shift+ArrowDown") for _ in range(6)])
    assert max(drawn["pixels"]) > 120
    digits_page.after(lambda: (page.locator("#clear").focus(), page.keyboard.press("Enter")))
    page.locator("#samples button").nth(3).focus()
    digits_page.after(lambda: page.keyboard.press("Space"))
    assert page.locator("#samples button").nth(3).get_attribute("aria-pressed") == "true"


def test_attention_of_each_block_the_pool_and_a_patch_is_that_of_pytorch(digits, digits_page):
    page = digits_page.page
    digits_page.after(page.locator("#samples button").nth(2).click)
    run = load_run(digits.path)
    found = run.model.intermediates(run.transform.normalised(sample_images(run).pixels[2:3]))
    maps = lambda: np.array(page.evaluate("answer.maps.map((map) => [...map])"))  # noqa: E731
    page.locator("#block").focus()
    digits_page.after(lambda: page.keyboard.press("End"))
    assert page.locator("#block-shown").inner_text() == "pool"
    assert maps() == pytest.approx(found["pool.weights"][0, :, 0].detach().numpy(), abs=1e-4)
    digits_page.after(lambda: page.keyboard.press("Home"))
    first = found["blocks.0.attn.weights"][0].detach().numpy()
    assert page.locator("#block-shown").inner_text() == "1 of 4"
    assert maps() == pytest.approx(first.mean(axis=1), abs=1e-4)
    assert page.locator("#maps li").all_inner_texts()[:2] == ["head 1", "head 2"]
    page.locator("#seen").click(position={"x": 100, "y": 30})  # patches of 70 pixels
    digits_page.wait(digits_page.answers() - 1)
    assert page.locator("#asker").inner_text() == "The patch in row 1, column 2 attends to:"
    assert maps() == pytest.approx(first[:, 1], abs=1e-4)
    digits_page.after(lambda: page.keyboard.press("ArrowDown"))
    assert maps() == pytest.approx(first[:, 5], abs=1e-4)
    digits_page.after(lambda: page.keyboard.press("Escape"))
    assert page.locator("#back").is_hidden()
    assert maps() == pytest.approx(first.mean(axis=1), abs=1e-4)


def drop(page, files: dict[str, bytes]) -> None:
    """Drop files, by name, on the page."""
    page.evaluate(
        """(files) => {
            const data = new DataTransfer();
            for (const [name, text] of Object.entries(files)) {
                data.items.add(new File([Uint8Array.from(atob(text), (one) => one.charCodeAt(0))], name));
            }
            document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
        }""",
        {name: base64.b64encode(content).decode() for name, content in files.items()},
    )


def picture(mode: str, size: tuple[int, int], kind: str = "PNG", **options) -> bytes:
    channels = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    stream = io.BytesIO()
    image = Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels, mode if mode != "P" else None)
    image.save(stream, kind, **options)
    return stream.getvalue()


def turned(orientation: int = 6) -> Image.Exif:
    """What a camera notes, 6 if it was held upright; training turns such images."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "content", "tolerance"),
    sampled(
        [
            ("grey.png", picture("L", (50, 40)), 0),
            ("colour.png", picture("RGB", (300, 211)), 0),
            ("same.png", picture("RGB", (32, 32)), 0),
            ("small.bmp", picture("RGB", (9, 30), "BMP"), 0),
            ("lossless.webp", picture("RGB", (64, 48), "WEBP", lossless=True), 0),
            ("photo.jpg", picture("RGB", (120, 90), "JPEG", subsampling=0), 3),
            ("turned.jpg", picture("RGB", (120, 90), "JPEG", subsampling=0, exif=turned()), 3),
        ],
        every=5,
    ),
)
def test_a_dropped_picture_is_prepared_as_in_training(colour, colour_page, tmp_path, name, content, tolerance):
    (tmp_path / name).write_bytes(content)
    decoded = Decoder(32, 3).read([tmp_path / name])[0].transpose(1, 2, 0).flatten()
    shown = colour_page.after(lambda: drop(colour_page.page, {name: content}))
    assert np.abs(np.array(shown["pixels"]) - decoded).max() <= tolerance
    assert shown["logits"] == pytest.approx(logits_of(colour, shown["pixels"]), abs=1e-3)
    assert len(colour_page.rows()) == 10, "the most probable of twelve"
    assert colour_page.problem == ""


def test_a_picture_is_opened_from_a_dialogue_too(digits, digits_page, tmp_path):
    (tmp_path / "picture.png").write_bytes(picture("RGB", (30, 20)))
    shown = digits_page.after(lambda: digits_page.page.locator("#file").set_input_files(tmp_path / "picture.png"))
    expected = load_run(digits.path).transform.pixels(tmp_path / "picture.png").flatten().numpy()
    assert np.abs(np.array(shown["pixels"]) - expected).max() <= 1
    assert digits_page.page.locator("#samples [aria-pressed=true]").count() == 0


def test_webp_is_turned_in_each_way_by_the_page_itself(colour_page, tmp_path):
    for orientation in range(1, 9):
        content = picture("RGB", (40, 36), "WEBP", lossless=True, exif=turned(orientation))
        (tmp_path / "turned.webp").write_bytes(content)
        decoded = Decoder(32, 3).read([tmp_path / "turned.webp"])[0].transpose(1, 2, 0).flatten()
        shown = colour_page.after(lambda: drop(colour_page.page, {"turned.webp": content}))  # noqa: B023 - called here
        assert shown["pixels"] == decoded.tolist(), orientation


HOLD = """() => {
    const decode = createImageBitmap;
    window.release = null;
    window.createImageBitmap = (...given) => new Promise((resolve) => {
        window.createImageBitmap = decode;
        window.release = () => resolve(decode(...given));
    });
}"""


@pytest.mark.whole
@pytest.mark.parametrize("latest", ["sample", "picture", "stroke", "clear"])
def test_a_picture_that_is_decoded_late_does_not_replace_a_later_one(digits_page, latest):
    page = digits_page.page
    page.evaluate(HOLD)
    drop(page, {"slow.png": picture("L", (9, 9))})
    while not page.evaluate("Boolean(window.release)"):
        page.wait_for_timeout(5)
    actions = {
        "sample": page.locator("#samples button").nth(4).click,
        "picture": lambda: drop(page, {"quick.png": picture("L", (8, 8))}),
        "stroke": page.locator("#pad").click,
        "clear": page.locator("#clear").click,
    }
    shown, count = digits_page.after(actions[latest]), digits_page.answers()
    page.evaluate("release()")
    page.wait_for_timeout(100)
    assert (digits_page.wait(count - 1), digits_page.answers()) == (shown, count)
    digits_page.after(page.locator("#clear").click)


HUGE = Image.new("1", (20_000, 20_000))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.png", b"This is a text.", "notes.png is not a picture that this browser can read."),
        ("empty.png", b"", "empty.png is not a picture that this browser can read."),
        ("cut.png", picture("RGB", (300, 300))[:90], "cut.png is not a picture that this browser can read."),
        ("huge.png", None, "huge.png has 20,000 × 20,000 pixels; the page takes up to 50 million."),  # noqa: RUF001
    ],
    ids=["text", "empty", "cut", "huge"],
)
def test_a_file_that_is_no_picture_is_reported_on_the_page(colour_page, name, content, message):
    if content is None:
        stream = io.BytesIO()
        HUGE.save(stream, "PNG")
        content = stream.getvalue()
    drop(colour_page.page, {name: content})
    colour_page.page.locator("#problem").filter(has_text=name).wait_for()
    assert colour_page.problem.startswith(message)
    colour_page.after(lambda: drop(colour_page.page, {"right.png": picture("RGB", (40, 40))}))
    assert colour_page.problem == ""


def test_dropping_something_else_than_a_file_is_explained(colour_page):
    drop(colour_page.page, {})
    assert colour_page.problem.startswith("That is not a file.")


@pytest.mark.whole
def test_a_run_without_its_data_gives_a_page_without_test_images(absent, browser):
    page = write_page(absent.path)
    assert re.match("no test images in the page: .*nowhere.* is not there from this folder", page.notes[0])
    opened = OpenPage(browser, page.path)
    assert opened.page.locator("#samples").count() == 0
    assert "Drop a picture" in opened.page.locator("#drop").inner_text()
    shown = opened.after(lambda: drop(opened.page, {"right.png": picture("RGB", (40, 50))}))
    assert shown["logits"] == pytest.approx(logits_of(absent, shown["pixels"]), abs=1e-3)
    assert opened.troubles == []
    opened.page.close()


def test_test_images_that_have_changed_since_the_training_are_left_out(tmp_path):
    images = tmp_path / "images"
    write_image_folder(images, "train", "test", classes=("ant", "bee"), size=(16, 16))
    given = ["data=imagefolder", f"data.root={images}", "data.image_size=16", "data.num_classes=2", "patch=4"]
    record = write_run(tmp_path, *given, "data.levels=[0,4095]", "data.crop_pct=0.8", classes=["ant", "bee"])
    config = load_run(record.path).config
    record.update(data_fingerprint=load_dataset(config.data, tmp_path, 0, with_fingerprint=True).fingerprint)
    next(images.glob("train/ant/*")).unlink()
    (note,) = write_page(record.path).notes  # and none about the test images, which are as they were
    assert note.startswith("data.levels=[0,4095] is not in the page: stretch 16-bit pictures to 8 bits")
    next(images.glob("test/ant/*")).unlink()
    page = write_page(record.path)
    problem = (
        f"no test images in the page: the data is not what {record.path} was trained on: test has 39 images, not 40"
    )
    assert page.notes[0].startswith(problem)
    assert '<ul id="samples">' not in page.path.read_text()
    assert '"crop_pct":0.8' in page.path.read_text().replace(" ", "")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_calibrated_page_has_the_temperature_in_its_head(tmp_path, monkeypatch, dtype):
    run = load_run(trained_run(tmp_path))
    heads = []
    monkeypatch.setattr(
        "vitrine.inference.page.page.encode", lambda weights, _: heads.append(weights["head.weight"]) or [""]
    )
    plain, page = (write_page(run.record.path, dtype=dtype, calibrate=calibrate) for calibrate in (False, True))
    temperature = float((heads[0] / heads[1]).mean())
    torch.testing.assert_close(heads[1] * temperature, heads[0])
    assert page.notes[0].startswith(f"temperature {temperature:.3f}, fitted on 144 validation images: NLL ")
    assert ("on 360 test images" in page.notes[0]) == (dtype == "float32"), "those of rounded weights are not stored"
    assert f"temperature {temperature:.3f}" in page.path.read_text()
    assert abs(temperature - 1) > 0.3, "else the next comparison shows nothing"
    costs = [float(re.search(r"up to (\S+),", note)[1]) for note in (plain.notes + page.notes) if "float16" in note]
    assert dtype == "float32" or costs[0] / costs[1] == pytest.approx(temperature, rel=0.2), "of the divided logits"


LOOKS = [(width, scheme) for width in (1280, 700, 400) for scheme in ("light", "dark")]


@pytest.mark.whole
@pytest.mark.parametrize(("width", "scheme"), quick(LOOKS, [(400, "dark")]))
def test_nothing_is_cut_or_overlaps(digits_file, colour_file, browser, width, scheme):
    for path in (digits_file, colour_file):
        options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
        opened = OpenPage(browser, path, **options)
        opened.wait(0)
        page = opened.page
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        boxes = [box.bounding_box() for box in page.locator("main > section, header").all()]
        for index, one in enumerate(boxes):
            assert one["x"] >= 0
            assert one["x"] + one["width"] <= width
            for other in boxes[:index]:
                apart = one["y"] >= other["y"] + other["height"] - 1 or one["x"] >= other["x"] + other["width"] - 1
                assert apart, "sections are in the order of the page, below or beside each other"
        for target in page.locator("button:visible, .button:visible").all():
            assert min(target.bounding_box()[side] for side in ("width", "height")) >= SMALLEST_TARGET
        assert opened.troubles == []
        page.close()


def test_bars_and_the_chosen_image_are_seen_in_forced_colours(digits_page):
    page = digits_page.page
    digits_page.after(page.locator("#samples button").first.click)
    page.emulate_media(forced_colors="active")
    colour = "(all) => all.map((one) => getComputedStyle(one).backgroundColor)"
    bars, (paper,) = page.locator(".bar").evaluate_all(colour), page.locator("body").evaluate_all(colour)
    assert paper not in bars
    outlines = page.locator("#samples button").evaluate_all(
        "(all) => all.map((one) => getComputedStyle(one).outlineStyle)"
    )
    assert outlines == ["solid"] + ["none"] * 9
    page.emulate_media(forced_colors="none")


def test_the_theme_is_switched_by_its_button(digits_page):
    page = digits_page.page
    paper = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    before = paper()
    page.get_by_role("button", name="Dark").click()
    assert paper() != before
    page.get_by_role("button", name="Dark").click()
    assert paper() == before


@pytest.mark.whole
@pytest.mark.parametrize(
    "overrides", [["model=vit_nano"], ["model=vit_tiny", "data.image_size=28", "patch=4"]], ids=["vit_nano", "vit_tiny"]
)
def test_a_model_of_usual_size_answers_with_the_logits_of_pytorch(tmp_path, browser, overrides):
    record = write_run(tmp_path, *overrides)
    opened = OpenPage(browser, write_page(record.path).path)
    opened.wait(0)
    shown = opened.after(opened.page.locator("#samples button").last.click)
    assert re.search(r"Computed in \d+ ms", opened.page.locator("#status").inner_text())
    assert shown["logits"] == pytest.approx(logits_of(record, shown["pixels"]), abs=1e-3)
    assert np.ptp(shown["logits"]) > 1


# What no page is made of ---------------------------------------------------------------------------------------------


def refused(record: RunRecord, *arguments: str, capsys) -> str:
    with pytest.raises(SystemExit) as end:
        main([str(record.path), *arguments])
    assert end.value.code == 1
    assert not list(record.path.glob("*.html"))
    assert not list(record.path.glob(".*.tmp"))
    return capsys.readouterr().err


def test_a_run_that_is_not_finished_is_refused(tmp_path, capsys):
    record = write_run(tmp_path, status="interrupted")
    assert refused(record, capsys=capsys) == f"vitrine: {record.path} has not finished: its status is interrupted\n"


def test_a_damaged_checkpoint_is_refused(tmp_path, capsys):
    record = write_run(tmp_path)
    content = bytearray(record.best.read_bytes())
    content[len(content) // 2] ^= 255
    record.best.write_bytes(content)
    assert re.fullmatch(r"vitrine: \S+best\.ckpt is damaged, or not a checkpoint: .*\n", refused(record, capsys=capsys))


def test_classes_that_do_not_fit_the_model_are_refused(tmp_path, capsys):
    record = write_run(tmp_path, classes="abc")
    assert re.search(r"run\.json names 3 .*, the model was trained on 10$", refused(record, capsys=capsys).strip())


def test_parts_of_a_users_own_are_refused_by_name(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    record = write_run(tmp_path, "position=examples.fourier.Fourier")
    message = "has parts that are Python code, which a page cannot run: model.position=examples.fourier.Fourier"
    assert message in refused(record, capsys=capsys)


def test_a_file_system_that_takes_no_more_is_reported_and_nothing_is_left(tmp_path, capsys):
    record = write_run(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        message = refused(record, capsys=capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    limit = "the limit of file sizes is reached (ulimit -f)"
    page = record.path / "page.html"
    assert message == f"vitrine: {limit}: cannot write {page}; raise it and rerun the same command\n"


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("nowhere/page.html", "is not a folder"),
        ("best.ckpt", "its name must end in .html"),
        (".", "it is a folder; name a"),
        ("x" * 300, r"cannot write \S+: File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(digits, tmp_path, to, problem):
    with pytest.raises(RunError, match=problem):
        write_page(digits.path, tmp_path / to)


def test_images_of_two_channels_are_refused(tmp_path):
    record = write_run(tmp_path, "data.in_channels=2", "data.mean=[0.3]", "data.std=[0.3]")
    with pytest.raises(RunError, match=r"takes images of 2 channels; pictures have 1 \(grey\), 3 \(RGB\) or 4"):
        write_page(record.path)
