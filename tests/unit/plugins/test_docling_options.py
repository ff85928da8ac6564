"""Options and discovery: what docling, its command line and docling-serve see of the plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from docling.datamodel.base_models import InputFormat
from docling.datamodel.pipeline_options import OcrMode, PdfPipelineOptions
from docling.models.factories import (
    get_layout_factory,
    get_ocr_factory,
    get_table_structure_factory,
)
from docling.utils.layout_postprocessor import LayoutPostprocessor
from docling.utils.pipeline_cache import create_pipeline_options_hash
from pydantic import ValidationError

from docling_mdiff.config import DEFAULTS, env_default
from docling_mdiff.convert import LABELS
from docling_mdiff.converter import make_converter
from docling_mdiff.options import (
    MDiffLayoutOptions,
    MDiffOcrOptions,
    MDiffPdfPipelineOptions,
    MDiffTableOptions,
    MDiffVlmPipelineOptions,
)
from mdiff_adapters.errors import ConfigError
from mdiff_adapters.host import load_plugins, resolve

KINDS = {
    "mdiff_ocr": (MDiffOcrOptions, get_ocr_factory),
    "mdiff_layout": (MDiffLayoutOptions, get_layout_factory),
    "mdiff_table": (MDiffTableOptions, get_table_structure_factory),
}
CLASSES = [options for options, _ in KINDS.values()]


def test_both_plugin_systems_find_the_same_module():
    targets = [
        [e.load() for e in entry_points(group=group) if e.value == "docling_mdiff.plugin"]
        for group in ("docling", "mdiff_adapters")
    ]
    assert [len(found) for found in targets] == [1, 1]
    module = targets[0][0]
    assert module is targets[1][0]
    for name in ("ocr_engines", "layout_engines", "table_structure_engines"):
        assert set(getattr(module, name)()) == {name}


def test_the_host_lists_every_adapter_and_each_target_exists():
    host = load_plugins([e for e in entry_points(group="mdiff_adapters") if e.name == "docling"])
    assert [record.status for record in host.records] == ["ok", "ok"]
    assert set(host.adapters) == {
        "docling-ocr", "docling-layout", "docling-table", "docling-pdf", "docling-vlm",
    }  # fmt: skip
    for info in host.adapters.values():
        assert isinstance(resolve(info.factory), type)


def test_the_plugin_module_loads_neither_docling_nor_torch():
    code = (
        "import sys, docling_mdiff, docling_mdiff.plugin as p; p.mdiff_register_adapters();"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('docling', 'torch', 'transformers')];"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


@pytest.mark.parametrize("kind", KINDS)
def test_docling_builds_the_options_by_kind_alone(kind):
    options_type, get_factory = KINDS[kind]
    factory = get_factory(allow_external_plugins=True)
    options = factory.create_options(kind)
    assert type(options) is options_type
    assert factory.registered_meta[options_type].plugin_name == "mdiff"


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_is_not_there_unless_external_plugins_are_allowed(kind):
    assert kind not in KINDS[kind][1](allow_external_plugins=False).registered_kind


@pytest.mark.parametrize("options_type", [*CLASSES, MDiffVlmPipelineOptions])
def test_options_are_plain_json_described_and_strict(options_type):
    options = options_type()
    again = options_type.model_validate_json(options.model_dump_json())
    # docling's own nested options hold sets, whose order in JSON differs from run to run.
    own = set(options_type.model_fields) - set(PdfPipelineOptions.model_fields)
    assert again.model_dump(include=own) == options.model_dump(include=own)
    missing = [name for name in own if not options_type.model_fields[name].description]
    assert not missing
    with pytest.raises(ValidationError, match="treshold"):
        options_type(treshold=0.9)
    with pytest.raises(ValidationError, match="threshold"):
        options_type(threshold=1.5)


@pytest.mark.parametrize(
    ("options_type", "name", "text", "value"),
    [
        *[(kind, "engine", "replay:pages", "replay:pages") for kind in CLASSES],
        (MDiffOcrOptions, "engine_options", '{"dtype": "fp32"}', {"dtype": "fp32"}),
        (MDiffOcrOptions, "threshold", "0.5", 0.5),
        (MDiffOcrOptions, "allow_remote", "1", True),
        (MDiffOcrOptions, "read_pictures", "yes", True),
        (MDiffLayoutOptions, "segmenter", "lines", "lines"),
        (MDiffTableOptions, "header_rows", "first", "first"),
    ],
)
def test_each_environment_variable_sets_its_option(monkeypatch, options_type, name, text, value):
    monkeypatch.setenv(f"MDIFF_DOCLING_{name.upper()}", text)
    assert getattr(options_type(), name) == value
    assert getattr(options_type(**{name: DEFAULTS[name]}), name) == DEFAULTS[name]


def test_every_environment_variable_is_documented_and_belongs_to_an_option():
    from docling_mdiff import config

    fields = {name for kind in CLASSES for name in kind.model_fields}
    for name in DEFAULTS:
        assert name in fields
        assert f"MDIFF_DOCLING_{name.upper()}" in config.__doc__


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("threshold", "high"), ("allow_remote", "maybe"),
        ("engine_options", "{"), ("engine_options", "[1]"),
    ],
)  # fmt: skip
def test_a_variable_that_cannot_be_read_names_itself(name, text):
    variable = f"MDIFF_DOCLING_{name.upper()}"
    with pytest.raises(ConfigError, match=variable):
        env_default(name, {variable: text})


@pytest.mark.parametrize(("name", "text"), [("threshold", "2"), ("header_rows", "last")])
def test_a_variable_out_of_range_is_refused_like_an_argument(monkeypatch, name, text):
    monkeypatch.setenv(f"MDIFF_DOCLING_{name.upper()}", text)
    with pytest.raises(ValidationError, match=name):
        MDiffTableOptions()


def test_defaults_from_the_environment_are_not_shared_between_options():
    first, second = MDiffOcrOptions(), MDiffOcrOptions()
    first.engine_options["dtype"] = "fp32"
    assert second.engine_options == {}


def test_two_engines_never_share_a_cached_pipeline():
    def key(**options):
        return create_pipeline_options_hash(
            PdfPipelineOptions(ocr_options=MDiffOcrOptions(**options))
        )

    keys = {key(), key(engine="/other"), key(engine_options={"dtype": "fp32"}), key(threshold=0.5)}
    assert len(keys) == 4
    assert key() == key()


def test_pipeline_defaults_are_our_engines_and_the_old_full_page_switch_works():
    options = MDiffPdfPipelineOptions()
    chosen = (options.ocr_options, options.layout_options, options.table_structure_options)
    assert tuple(type(o) for o in chosen) == (
        MDiffOcrOptions, MDiffLayoutOptions, MDiffTableOptions,
    )  # fmt: skip
    assert options.allow_external_plugins
    assert MDiffOcrOptions(force_full_page_ocr=True).mode is OcrMode.FULL_PAGE


def test_every_label_we_give_is_one_that_docling_keeps():
    from typing import get_args

    from mdiff_adapters.document import RegionType

    assert set(LABELS) == set(get_args(RegionType))
    assert set(LABELS.values()) <= set(LayoutPostprocessor.CONFIDENCE_THRESHOLDS)


def test_the_package_offers_what_it_lists():
    import docling_mdiff

    for name in docling_mdiff.__all__:
        assert getattr(docling_mdiff, name).__module__.startswith("docling_mdiff.")
    with pytest.raises(AttributeError, match="nothing"):
        docling_mdiff.nothing  # noqa: B018


def test_options_survive_json_made_by_hand():
    text = json.dumps({"engine": "tiny", "mode": "full_page", "lang": ["iso:de"]})
    options = MDiffOcrOptions.model_validate_json(text)
    assert options.mode is OcrMode.FULL_PAGE
    assert options.lang == ["iso:de-Latn"]


def pdf_options(**options):
    converter = make_converter(**options)
    return converter.format_to_options[InputFormat.PDF].pipeline_options


def test_options_of_the_stages_reach_every_stage_that_has_them():
    made = pdf_options(threshold=0.5, header_rows="first", scale=2.0, do_ocr=False)
    stages = (made.ocr_options, made.layout_options, made.table_structure_options)
    assert [stage.threshold for stage in stages] == [0.5, 0.5, 0.5]
    assert made.table_structure_options.header_rows == "first"
    assert made.layout_options.scale == made.table_structure_options.scale == 2.0
    assert made.do_ocr is False


def test_a_stage_whose_options_are_given_keeps_them():
    made = pdf_options(ocr_options=MDiffOcrOptions(threshold=0.25), threshold=0.5)
    assert (made.ocr_options.threshold, made.layout_options.threshold) == (0.25, 0.5)
    with pytest.raises(ValueError, match=r"header_rows would have no effect.*table_structure"):
        pdf_options(table_structure_options=MDiffTableOptions(), header_rows="first")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"treshold": 0.5}, "no option 'treshold'.*'threshold'"),
        ({"do_orc": False}, "no option 'do_orc'.*'do_ocr'"),
        ({"threshold": 1.5}, "threshold"),
        ({"header_rows": "last"}, "header_rows"),
        ({"do_ocr": "perhaps"}, "do_ocr"),
        ({"engine_options": 3}, "engine_options"),
        ({"engine": ""}, "engine"),
    ],
)
def test_a_converter_refuses_what_it_cannot_use(options, message):
    with pytest.raises(ValueError, match=message):
        make_converter(**options)


def test_pipeline_options_refuse_unknown_names():
    with pytest.raises(ValidationError, match="threshold"):
        MDiffPdfPipelineOptions(threshold=0.5)


def test_keys_of_servers_are_not_shown_but_tell_pipelines_apart():
    def pipeline(key):
        return MDiffPdfPipelineOptions(
            ocr_options=MDiffOcrOptions(engine_options={"api_key": key, "timeout_s": 7})
        )

    mine, yours = pipeline("SECRET"), pipeline("OTHER")
    for options in (mine, mine.ocr_options):
        assert "SECRET" not in f"{options!r} {options}"
        assert "'api_key': '***', 'timeout_s': 7" in repr(options)
    assert mine.ocr_options.engine_options["api_key"] == "SECRET"
    assert create_pipeline_options_hash(mine) != create_pipeline_options_hash(yours)
