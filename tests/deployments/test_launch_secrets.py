"""No credential that is put into a launch line comes out of it, wherever it stands."""

from __future__ import annotations

import json
import shlex
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.deployments.launch import LaunchFacts, LaunchFile, parse_vllm, read_launch
from kvgate.deployments.launch.secrets import clean, clean_text
from kvgate.rules.credentials import holds_credential, is_secret_name, refuse_credentials
from kvgate.rules.errors import InputError
from tests.rules.test_credentials import FOUND

# Long enough not to occur by chance, not the value of anything else in a line, and no number.
SECRETS = st.text(string.ascii_letters + string.digits, min_size=20, max_size=40).map(lambda text: f"k{text}")
SHAPED = SECRETS.map(lambda text: f"hf_{text}") | SECRETS.map(lambda text: f"sk-{text}")


def _offload(secret: str) -> str:
    tier = {"type": "obj", "store_config": {"bucket": "b", "endpoint_override": "s3", "secret_key": secret}}
    extra = {
        "spec_name": "TieringOffloadingSpec",
        "secondary_tiers": [tier],
        "api_token": secret,
        "u": f"x://u:{secret}@h",
    }
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}
    return f"vllm serve org/m --kv-transfer-config {shlex.quote(json.dumps(config))}"


PLACES = {
    "--api-key": "vllm serve org/m --api-key {} other",
    "--api-key=": "vllm serve org/m --api_key={}",
    "--hf-token": "vllm serve org/m --hf-token {} -tp 2",
    "abbreviated": "vllm serve org/m --api-k {}",
    "an unknown flag": "vllm serve org/m --registry-password {}",
    "a dotted flag": "vllm serve org/m --additional-config.auth.secret {}",
    "a dotted flag with an equals sign": "vllm serve org/m --additional-config.store.access_key={}",
    "the environment": "HF_TOKEN={} vllm serve org/m",
    "an export": "export AWS_SECRET_ACCESS_KEY={}\nvllm serve org/m",
    "env": "env VLLM_API_KEY={} vllm serve org/m",
    "docker -e": "docker run -e HUGGING_FACE_HUB_TOKEN={} vllm/vllm-openai:v0.33.0 org/m",
    "docker --env=": "docker run --env=LMCACHE_REMOTE_PASSWORD={} vllm/vllm-openai:v0.33.0 org/m",
    "a URL's password": "VLLM_X=redis://user:{}@host/0 vllm serve org/m",
    "a URL's user": "vllm serve org/m --otlp-traces-endpoint https://{}@host",
    "a store's URL": "LMCACHE_REMOTE_URL=redis://:{}@h:6379 vllm serve org/m --kv-transfer-config "
    """'{{"kv_connector":"LMCacheConnectorV1"}}'""",
    "a URL's query": "LMCACHE_REMOTE_URL='s3://b?access_key={}&region=x' vllm serve org/m --kv-transfer-config "
    """'{{"kv_connector":"LMCacheConnectorV1"}}'""",
    "the model's URL": "vllm serve https://u:{}@host/org/m",
    "an image's registry": "docker run https://u:{}@registry/vllm:v1 org/m",
    "an adapter's URL": "vllm serve org/m --lora-modules a=https://u:{}@h/x",
    "an adapter as JSON": """vllm serve org/m --lora-modules '{{"name":"a","path":"/x","token":"{}"}}'""",
    "a broken adapter": """vllm serve org/m --lora-modules '{{"name":"a","token":"{}"'""",
    "a wrong type": "vllm serve org/m --tensor-parallel-size {}",
    "a word too many": "vllm serve org/m -- {}",
    "an open quote": "vllm serve org/m --api-key '{}",
    "a URL with a slip": "LMCACHE_REMOTE_URL=redis:/:{}@h vllm serve org/m --kv-transfer-config "
    """'{{"kv_connector":"LMCacheConnectorV1"}}'""",
    "a URL with a space": "vllm serve org/m --additional-config.url 'redis:// :{}@h'",
    "--otlp-headers": "vllm serve org/m --otlp-headers {}",
    "half of a pair": "vllm serve org/m --additional-config.store.sk {}",
    "a user's name": "vllm serve org/m --additional-config.store.username {}",
    "pass": "STORE_PASS={} vllm serve org/m",
}
SHAPED_PLACES = {
    "any value": "vllm serve org/m --served-model-name {}",
    "the name of a flag": "vllm serve org/m --{}",
    "the model": "vllm serve {}",
    "a list": "vllm serve org/m --lora-modules a={} b={}",
    "a variable's name": "{}=1 vllm serve org/m",
    "a key": """vllm serve org/m --additional-config '{{"{}": 1}}'""",
    "overrides": """vllm serve org/m --hf-overrides '{{"a": ["{}"]}}'""",
    "a tag": "docker run vllm/vllm-openai:{} org/m",
    "a config file's name": "vllm serve org/m --config {}",
    "the hash seed": "PYTHONHASHSEED={} vllm serve org/m",
    "a template": "vllm serve org/m --chat-template {}",
    "a role": """vllm serve org/m --kv-transfer-config '{{"kv_connector":"{}"}}'""",
}


def _told(line: str) -> str:
    try:
        facts: LaunchFacts = parse_vllm(line, source="launch.sh")
    except InputError as error:
        return repr((str(error), error.message, error.where, error.hint))
    return repr(facts)


@pytest.mark.parametrize("place", PLACES)
@given(secret=SECRETS)
def test_a_secret_in_a_secrets_place_never_comes_out(place: str, secret: str) -> None:
    assert secret not in _told(PLACES[place].format(secret, secret))


@given(secret=SECRETS)
def test_a_secret_inside_a_connectors_settings_never_comes_out(secret: str) -> None:
    assert secret not in _told(_offload(secret))


@pytest.mark.parametrize("place", SHAPED_PLACES)
@given(secret=SHAPED)
def test_what_looks_like_a_token_never_comes_out_of_any_place(place: str, secret: str) -> None:
    assert secret not in _told(SHAPED_PLACES[place].format(secret, secret))


@pytest.mark.parametrize(
    "name",
    [
        "pass_config",
        "bypass",
        "skip",
        "task",
        "tokenizer",
        "max-num-batched-tokens",
        "spec_tokens",
        "tokens-only",
        "PYTHONHASHSEED",
        "key_namespace",
        "keys",
    ],
)
def test_a_setting_is_no_secret(name: str) -> None:
    assert not is_secret_name(name)
    assert clean({name: "value"}) == ({name: "value"}, False)


def test_a_token_id_is_a_number_and_stays() -> None:
    assert clean({"eos_token_id": 2, "image_token": "<img>"}) == ({"eos_token_id": 2}, True)


@pytest.mark.parametrize("text", FOUND)
def test_what_a_manifest_is_refused_for_was_dropped_before(text: str) -> None:
    kept, dropped = clean({"setting": [text]})
    assert dropped
    assert not any(holds_credential(one) for one in kept.get("setting", []))


STRUCTURES = {
    "JSON of an unknown flag": """--new-thing '{{"a": [{{"redisPassword": ["{}"]}}]}}'""",
    "JSON that a shell has split": """--new-thing {{password: [{}], url: x}}""",
    "JSON of a known flag that takes a text": """--served-model-name '{{"hf_token": {{"x": "{}"}}}}'""",
    "what is nearly JSON": """--new-thing "{{'api_key': ['{}']}}" """,
}


@pytest.mark.parametrize("place", STRUCTURES)
def test_a_secret_inside_a_structure_is_dropped_with_the_whole_of_it(place: str) -> None:
    secret = "k" + "x7" * 12
    assert secret not in _told(f"vllm serve org/m {STRUCTURES[place].format(secret)}")


@pytest.mark.parametrize("value", [{"x": "y"}, ["y"], [["y"]], {}, "y"])
def test_a_mapping_or_a_list_under_a_credentials_name_is_one(value: object) -> None:
    assert clean(value, "secret_key") == (None, True)
    assert clean({"a": {"secret_key": value}, "b": 1}) == ({"a": {}, "b": 1}, True)


@pytest.mark.parametrize(
    "value", ["{{ bos_token }}", "{% set eos_token = 'x' %}", '{"a": [1]}', "[1, 2]", ["a=/x", "b=/y"], ["x:1"]]
)
def test_templates_structures_and_lists_without_one_stay(value: object) -> None:
    assert clean(value) == (value, False)


@pytest.mark.parametrize("settings", [{"password": 1234}, {"a": {"apiKey": 7.5}}, {"note": "--api-key k9"}])
def test_what_a_manifest_is_refused_for_by_name_was_dropped_before(settings: dict[str, object]) -> None:
    kept, dropped = clean(settings)
    assert dropped
    refuse_credentials(kept, "kept")


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        ("redis://user:pw@host:6379/0", "redis://host:6379/0"),
        ("redis://host:6379/0?db=1", "redis://host:6379/0?db=1"),
        ("https://h/x?token=abc", "https://h/x"),
        ("https://h/x?token=abc&db=1", "https://h/x?db=1"),
        ("org/model@main", "org/model@main"),
        ("https://h/a@b", "https://h/a@b"),
    ],
)
def test_a_url_loses_its_credentials_and_nothing_else(given_: str, kept: str) -> None:
    assert clean_text(given_) == kept


@given(st.text(max_size=200))
def test_no_line_crashes_the_reader(text: str) -> None:
    _told(f"vllm serve org/m {text}")


@given(
    st.lists(
        st.sampled_from(
            [
                "vllm",
                "serve",
                "docker",
                "run",
                "bash",
                "-c",
                "-e",
                "--config",
                "'",
                '"',
                "\\",
                "$(",
                ")",
                "`",
                "${",
                "}",
                "|",
                ";",
                "#",
                "--a.b",
                "-tp",
                "=",
                "{}",
                "\n",
                "x",
            ]
        ),
        max_size=30,
    )
)
def test_no_arrangement_of_shell_pieces_crashes_the_reader(pieces: list[str]) -> None:
    _told(" ".join(pieces))
    _told("".join(pieces))


URLS = {
    "redis://:p/w0rd@c:6379/0": None,
    "redis://u:p/w@0rd@c:6379/0": None,
    "redis://:p?w0rd@c:6379/0": None,
    "redis://:p#w0rd@c:6379/0": None,
    "redis://:12/w0rd@c:6379/0": None,
    "see redis://:p/w0rd@c and more": None,
    "redis://:p%2Fw0rd@c:6379/0": "redis://c:6379/0",
    "redis://u:p@c:6379/0": "redis://c:6379/0",
    "https://host/@scope/package": "https://host/@scope/package",
    "redis://c:6379/0": "redis://c:6379/0",
}


@pytest.mark.parametrize("url", URLS)
def test_a_password_with_a_slash_in_it_is_a_password(url: str) -> None:
    assert clean_text(url) == URLS[url]


def test_a_store_behind_such_a_password_is_not_known() -> None:
    line = "LMCACHE_REMOTE_URL=redis://:p/w0rd@c:6379/0 vllm serve org/m --kv-transfer-config {}"
    found = parse_vllm(line.format(shlex.quote('{"kv_connector":"LMCacheConnectorV1"}')), source="s")
    assert "w0rd" not in repr(found)
    assert "cache.location" not in found.values
    assert dict(found.unknown)["cache.location"] == "LMCACHE_REMOTE_URL is set to a credential, which was left out"
    seed = parse_vllm("PYTHONHASHSEED=hf_abcdefghijklmnopqrst vllm serve org/m", source="s")
    assert "engine.prefix_hash.seed" not in seed.values  # not known to be unset


PROMPT = "SECRETPROMPT for tenant ACME"


@pytest.mark.parametrize(
    "place",
    [
        """vllm serve org/m --default-chat-template-kwargs '{{"system_prompt": "{}"}}'""",
        """vllm serve org/m --default-chat-template-kwargs '{{"a": {{"b": ["{}"]}}}}'""",
        "vllm serve org/m --default-chat-template-kwargs.system_prompt '{}'",
        "VLLM_FOO='{}' vllm serve org/m",
        "docker run -e 'TORCHINDUCTOR_X={}' vllm/vllm-openai:v0.33.0 org/m",
    ],
)
@pytest.mark.parametrize("text", [PROMPT, "tenant-acme-salt", "ACME"])
def test_free_text_is_compared_and_never_shown(place: str, text: str) -> None:
    first, again, other = (parse_vllm(place.format(one), source="s") for one in (text, text, "something else"))
    assert text not in repr(first)
    assert "sha256:" in repr(first)
    assert first == again != other


def test_switches_numbers_and_paths_stay_readable() -> None:
    kwargs = {"enable_thinking": False, "reasoning_effort": "high", "budget": "1024", "n": 3, "file": "/x/y.json"}
    found = parse_vllm(
        f"VLLM_FOO=1 VLLM_BAR=Auto vllm serve org/m --default-chat-template-kwargs '{json.dumps(kwargs)}'", source="s"
    )
    assert found.values["tokenizer.options"] == {"template_kwargs": kwargs}
    assert found.values["engine.args"] == {"VLLM_FOO": "1", "VLLM_BAR": "Auto"}


TWICE = {
    "a flag": "T={0}; vllm serve org/m --foo $T --api-key $T",
    "a flag of the table": "vllm serve org/m --served-model-name {0} --api-key {0}",
    "a part": "HF_TOKEN={0} vllm serve org/m --kv-transfer-config "
    """'{{"kv_connector":"ExampleConnector","kv_connector_extra_config":{{"shared_storage_path":"/kv/{0}/x"}}}}'""",
    "the model": "vllm serve org/{0} --api-key {0}",
    "a worker of Dynamo": "HF_TOKEN={0} python3 -m dynamo.vllm --model org/m --served-model-name {0}",
}


@pytest.mark.parametrize("place", TWICE)
@given(secret=SECRETS)
def test_what_is_a_credential_once_is_one_wherever_it_stands(place: str, secret: str) -> None:
    try:
        told = repr(read_launch([LaunchFile("serve.sh", TWICE[place].format(secret).encode())]))
    except InputError as error:
        told = repr((str(error), error.hint))
    assert secret not in told
