"""No file of the deployment names an image whose content changes with every release: the tag `latest`, or no tag."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    file
    for pattern in ("compose.yaml", "Dockerfile", "README.md", "deploy/**/*", "docs/**/*.md", ".github/**/*.yml")
    for file in ROOT.glob(pattern)
    if file.is_file()
)
IMAGE = re.compile(
    r"""^\s*(?:-\s+)?image:\s*["']?(?:\$\{\w+:-)?(?P<key>[a-z][\w./:@-]+)"""
    r"|^FROM (?P<base>[a-z][\w./-]+(?::\S+|@\S+)?)(?: AS \w+)?$"
    r"|(?:docker|podman) build .*?(?:--tag|-t) (?P<built>\S+)"
    r"|(?:docker|podman) (?:run|pull)(?: -[-\w=.:/]+)* (?P<run>[a-z][\w./:@-]+)"
)


def images(text: str) -> list[str]:
    """Return the images that a file names, except the stages of a Dockerfile."""
    stages = set(re.findall(r"^FROM .* AS (\w+)$", text, re.MULTILINE))
    found = [match[match.lastgroup or ""] for line in text.splitlines() if (match := IMAGE.search(line))]
    return [image for image in found if image not in stages]


def has_fixed_tag(image: str) -> bool:
    """Return true if an image has a digest, or a tag other than `latest`."""
    tag = image.rpartition("/")[2].partition(":")[2]
    return "@sha256:" in image or tag not in {"", "latest"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_images_have_a_tag_other_than_latest(file: Path) -> None:
    text = file.read_text(errors="replace")
    assert [image for image in images(text) if not has_fixed_tag(image)] == []
    assert not re.search(r"\w:latest\b", text)


def test_the_images_of_compose_and_of_the_dockerfile_are_found() -> None:
    assert {"responses-platform:local", "docker.io/library/caddy:2"} <= {*images((ROOT / "compose.yaml").read_text())}
    assert "docker.io/library/debian:${DEBIAN}-slim" in images((ROOT / "Dockerfile").read_text())
    assert "responses-platform:local" in images((ROOT / "docs/howto/deploy.md").read_text())


@pytest.mark.parametrize(
    "line",
    [
        "    image: docker.io/searxng/searxng:latest",
        "image: ${IMAGE:-docker.io/searxng/searxng:latest}",
        "      - image: registry.example.com:5000/platform",
        "docker build --tag responses-platform .",
        "docker run --rm responses-platform generate_secrets",
        "FROM debian",
    ],
)
def test_a_changing_image_is_noticed(line: str) -> None:
    assert [has_fixed_tag(image) for image in images(line)] == [False]
