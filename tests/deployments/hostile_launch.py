"""Launch files that somebody wrote to do harm, of every kind that capture reads; a number makes the same file again.

A file is one that serving teams deploy, with hostile pieces in it: commands that a shell would run, what makes parsers
slow or deep, what text tools show as something else, paths that lead elsewhere, and a credential wherever one may
stand. What must never happen is said by :func:`read` and :func:`harm_of_the_command`.
"""

from __future__ import annotations

import json
import random
import shlex
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from kvgate.deployments.launch import LaunchFacts, LaunchFile, read_launch
from kvgate.rules.errors import InputError
from tests.cli.conftest import in_process
from tests.deployments.made import model_spec, modelservice, predictor, runtime, service, stack, workload

LONGEST_ERROR = 2_000
"""Characters of an error: it is one line for a terminal."""
SECONDS = 6.0
"""Processor time for one file, with room for a machine that does much else; what is slow takes minutes."""
CANARY = "canary-was-here"
_LETTERS = string.ascii_letters + string.digits
_DIGEST = "sha256:" + "a" * 64
_JSON_TOKEN = "eyJhbGciOiJIUzI1NiJ9."


@dataclass
class Hostile:
    """A launch file, and what stands in it.

    Attributes:
        name: of the file.
        data: its content.
        secret: a credential that stands in it wherever one may.
        beside: files that it may name.
        more: files that are handed in with it.
    """

    name: str
    data: bytes
    secret: str
    beside: dict[str, bytes] = field(default_factory=dict)
    more: dict[str, bytes] = field(default_factory=dict)

    def files(self) -> list[LaunchFile]:
        """The files as capture takes them."""
        first = LaunchFile(self.name, self.data, self.beside)
        return [first, *(LaunchFile(name, data) for name, data in self.more.items())]


def read(hostile: Hostile) -> tuple[LaunchFacts | None, str]:
    """Read a file; return the facts, where it is one, and everything that was said.

    Raises:
        AssertionError: the error is not one short line, or reading took too long.
    """
    started = time.process_time()
    facts = None
    try:
        (facts,) = read_launch(hostile.files())
        said = repr(facts)
    except InputError as error:
        said = "\0".join(map(str, (error, error.message, error.where, error.hint)))
        shown = str(error)
        assert "\n" not in shown, shown[:LONGEST_ERROR]
        assert len(shown) < LONGEST_ERROR, shown[:LONGEST_ERROR]
    took = time.process_time() - started
    assert took < SECONDS, f"{took:.1f} seconds"
    return facts, said


def make(number: int, canary: Path) -> Hostile:
    """Make the file of a number.

    Args:
        number: which.
        canary: a file that the commands in it would write.
    """
    return _Maker(random.Random(number), canary).file()


def harm_of_the_command(hostile: Hostile, checkpoint: Path, folder: Path, canary: Path) -> tuple[list[str], bool]:
    """Capture a file with the command and check what comes out against itself.

    Args:
        hostile: the file.
        checkpoint: the model's folder.
        folder: where to write to; it is made.
        canary: a file that the commands in the file would write.

    Returns:
        What went wrong, one sentence each, and whether there was a manifest to be checked.
    """
    name = PurePosixPath(hostile.name).name
    given, out = folder / "given", folder / "out"
    for part in (given, out):
        part.mkdir(parents=True)
    for file, data in {**hostile.beside, name: hostile.data}.items():
        (given / file).write_bytes(data)
    ran = [in_process("capture", str(checkpoint), "--from", str(given / name), "-o", str(out / "release"))]
    reached = ran[0].code == 0
    if reached:
        release = str(out / "release")
        ran.append(in_process("check", release, release, "-o", "text", "-o", f"json={out / 'record.json'}"))
    told = [text for one in ran for text in (one.out, one.err)]
    told += [path.read_bytes().decode("utf-8", "replace") for path in out.rglob("*") if path.is_file()]
    harm = [f"ended with {one.code}: {one.err[-300:]}" for one in ran if one.code not in (0, 3, 10, 11, 20, 30)]
    harm += ["a credential was said" for text in told if hostile.secret in text][:1]
    harm += ["a command of the file was run"] if canary.exists() else []
    return harm, reached


class _Maker:
    """One file under making."""

    def __init__(self, draw: random.Random, canary: Path) -> None:
        self._draw = draw
        self._usual = draw.choice([0.6, 0.9, 0.98, 1.0])
        self._plain = "k" + "".join(draw.choices(_LETTERS, k=24))
        self._beside: dict[str, bytes] = {}
        self._more: dict[str, bytes] = {}
        run = f"touch {shlex.quote(str(canary))}"
        quoted = shlex.quote(str(canary))
        self._harmful = [
            f"$({run})",
            f"`{run}`",
            f"; {run} #",
            f"| {run}",
            f"&& {run}",
            f"\n{run}\n",
            f"$(rm -rf {quoted}; {run})",
            f"${{X:=$({run})}}",
            f"<({run})",
            f"> {quoted}",
            f"eval {run}",
            f"{{{{ cycler.__init__.__globals__.os.system('{run}') }}}}",
            f"{{{{ .Files.Get `{run}` }}}}",
        ]

    # -- pieces ----------------------------------------------------------------------------------------

    def secret(self) -> str:
        """The credential, in a form in which issuers spell theirs or as plain letters."""
        return self._plain

    def shaped(self) -> str:
        """The credential as something that looks like one wherever it stands."""
        forms = ("hf_{}", "sk-{}", "ghp_{}", "glpat-{}", f"{_JSON_TOKEN}{{}}", "Bearer {}1", "https://u:{}@h/x")
        return self._draw.choice(forms).format(self._plain)

    def harmful(self) -> str:
        return self._draw.choice(self._harmful)

    def odd(self) -> str:
        """A text that readers stumble over."""
        draw = self._draw
        choices: list[Callable[[], str]] = [
            self.harmful,
            self.shaped,
            lambda: "../" * draw.randint(1, 60) + "etc/passwd",
            lambda: "/proc/self/environ",
            lambda: "a\x00b",
            lambda: "\u202egnp.sh",
            lambda: "\u2066\u200b\ufeff",
            lambda: "\ufdd0\ufdd1\ufddf",
            lambda: "\ud83d",
            lambda: "\x1b[2J\x1b]0;x\x07",
            lambda: "x" * draw.choice([300, 5_000, 140_000]),
            lambda: "9" * draw.choice([30, 400, 5_000]),
            lambda: "[" * draw.choice([10, 200, 3_000]),
            lambda: "{" * draw.choice([10, 3_000]) + "}" * draw.choice([10, 3_000]),
            lambda: '{"a":' * draw.choice([5, 200]) + "1" + "}" * 200,
            lambda: "$" * draw.choice([1, 3, 5_000]),
            lambda: "$(" * draw.choice([1, 3_000]),
            lambda: "${" * 500 + "}" * draw.choice([0, 500]),
            lambda: "'" + '"' * draw.randint(0, 3),
            lambda: "\\",
            lambda: "-" * draw.randint(1, 4),
            lambda: "--api-key",
            lambda: "{{ .Values.x }}",
            lambda: "{% for a in range(10**9) %}{{ a }}{% endfor %}",
            lambda: "NaN",
            lambda: "1e999",
            lambda: "-0",
            lambda: "yes",
            lambda: "2026-11-29",
            lambda: "!!python/object/apply:os.system [id]",
            lambda: "\r\n",
            lambda: "\t",
            lambda: "",
        ]
        return draw.choice(choices)()

    def value(self, usual: str) -> str:
        """A value as it is usually, or an odd one."""
        return usual if self._draw.random() < self._usual else self.odd()

    def nested(self, depth: int = 3) -> Any:
        """JSON with the credential under a name that says so."""
        draw = self._draw
        under = (
            "password",
            "secret_key",
            "accessKey",
            "api_token",
            "hf_token",
            "auth",
            "redisPassword",
            "authorization",
        )
        inner: Any = {draw.choice(under): draw.choice([self.secret(), [self.secret()], {"x": self.secret()}])}
        inner["url"] = f"redis://user:{self.secret()}@h:6379/0"
        if draw.random() < 0.3:
            inner[self.shaped()] = 1
        for _ in range(draw.randint(0, depth)):
            inner = draw.choice([{"a": inner}, [inner], {"b": [inner, self.value("x")]}])
        return inner

    def flags(self, engine: str) -> list[str]:
        """Flags of an engine's server: usual ones, odd ones, and some that hold a credential."""
        draw = self._draw
        usual = {
            "vllm": ["--tensor-parallel-size=2", "--dtype=half", "--block-size=32", "--enable-lora", "--seed=1"],
            "sglang": ["--tp=2", "--page-size=64", "--dtype=half", "--enable-hierarchical-cache"],
            "trtllm": ["--tp_size=2", "--max_seq_len=4096", "--kv_cache_dtype=fp8", "--config=x.yaml"],
            "dynamo": ["--namespace=n", "--disaggregation-mode=prefill", "--connector=kvbm", "--router-temperature=1"],
        }[engine]
        secrets = [
            ["--api-key", self.secret()],
            [f"--api-key={self.secret()}"],
            ["--hf-token", self.secret()],
            ["--registry-password", self.secret()],
            [f"--additional-config.auth.secret={self.secret()}"],
            ["--additional-config", json.dumps(self.nested())],
            ["--otlp-traces-endpoint", f"https://u:{self.secret()}@h"],
            ["--header", f"Authorization: Bearer {self.secret()}"],
            ["--served-model-name", self.shaped()],
            [f"--{self.shaped()}", "x"],
            ["--lora-modules", f"a=https://u:{self.secret()}@h/a"],
            ["--hf-overrides", json.dumps({"a": [self.shaped()]})],
            ["--json-model-override-args", json.dumps(self.nested())],
            ["--speculative-config", json.dumps({"model": self.shaped()})],
            ["--set", f"kv_cache_config.password={self.secret()}"],
            ["--kv-transfer-config", json.dumps(self.connector())],
            ["--hicache-storage-backend-extra-config", json.dumps(self.nested())],
            ["--override-engine-args", json.dumps(self.nested())],
            ["--extra-engine-args", "x.yaml"],
            ["--chat-template", self.value("/t.jinja")],
            ["--config", self.value("x.yaml")],
        ]
        found = [self.value(one) for one in draw.sample(usual, draw.randint(0, len(usual)))]
        for one in draw.sample(secrets, draw.randint(0, 5)):
            found += one
        for _ in range(draw.choice([0, 1, 2]) if self._usual < 0.9 else 0):
            found += draw.choice([[f"--{draw.choice(['x', 'revision', 'port'])}", self.odd()], [self.odd()]])
        return found

    def connector(self) -> dict[str, Any]:
        name = self._draw.choice(["LMCacheConnectorV1", "OffloadingConnector", "DynamoConnector", "Mine", self.odd()])
        tier = {"type": "fs", "root_dir": self.value("/kv"), "token": self.secret()}
        extra = {
            "spec_name": "TieringOffloadingSpec",
            "secondary_tiers": [tier],
            "n": self.nested(1),
            "api_key": self.secret(),
        }
        return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}

    def variables(self) -> dict[str, str]:
        """Variables, some of them credentials."""
        draw = self._draw
        known = {
            "HF_TOKEN": self.secret(),
            "AWS_SECRET_ACCESS_KEY": self.secret(),
            "LMCACHE_REMOTE_URL": f"redis://:{self.secret()}@h:6379",
            "LMCACHE_REMOTE_PASSWORD": self.secret(),
            "VLLM_API_KEY": self.secret(),
            "VLLM_X": self.shaped(),
            "DYN_KVBM_OBJECT_SECRET_KEY": self.secret(),
            "DYN_KVBM_OBJECT_ENDPOINT": f"http://u:{self.secret()}@h",
            "TRTLLM_Y": f"--api-key {self.secret()}",
            "PYTHONHASHSEED": self.value("0"),
            "VLLM_KV_CACHE_LAYOUT": self.value("NHD"),
            "LMCACHE_CHUNK_SIZE": self.value("256"),
            "LMCACHE_CONFIG_FILE": self.value("lmcache.yaml"),
            "BASH_ENV": self.harmful(),
            "PYTHONPATH": self.value("/x"),
        }
        found = {name: known[name] for name in draw.sample(sorted(known), draw.randint(0, 5))}
        if draw.random() < 0.1 and self._usual < 0.9:
            found[self.odd()] = self.odd()
        return found

    def command(self) -> list[str]:
        """The words that start a server."""
        draw = self._draw
        model = self.value("org/m")
        kinds = {
            "vllm": (["vllm", "serve", model], "vllm"),
            "module": (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", model], "vllm"),
            "sglang": (["python3", "-m", "sglang.launch_server", "--model-path", model], "sglang"),
            "trtllm": (["trtllm-serve", *draw.choice([["serve"], []]), model], "trtllm"),
            "dynamo.vllm": (["python3", "-m", "dynamo.vllm", "--model", model], "dynamo"),
            "dynamo.sglang": (["python3", "-m", "dynamo.sglang", "--model-path", model], "dynamo"),
            "dynamo.trtllm": (["python3", "-m", "dynamo.trtllm", "--model", model], "dynamo"),
            "lmcache": (["lmcache", "server", "--l2-adapter", json.dumps(self.nested())], "vllm"),
        }
        start, engine = kinds[draw.choice([kind for kind in sorted(kinds) if kind != "lmcache" or draw.random() < 0.2])]
        return [*start, *self.flags(engine)]

    def script(self) -> str:
        """A shell script that starts a server."""
        draw = self._draw
        plain = draw.random() < 0.8
        words = [shlex.quote(word) if plain else word for word in self.command()]
        lines = [f"# token: {self.secret()}", f"#!/bin/bash {self.value('-e')}"]
        for name, value in self.variables().items():
            lines.append(f"export {name}={shlex.quote(value) if plain else value}")
        lines += draw.sample(
            ["set -euo pipefail", "sleep 1", f"curl -H 'Authorization: Bearer {self.secret()}' http://h"], 1
        )
        if draw.random() < 0.2:
            lines.append(self.harmful())
        lines.append(draw.choice([" ", " \\\n  "]).join(words))
        text = "\n".join(lines)
        if draw.random() < 0.2:
            text = f"bash -c {shlex.quote(text)}"
        elif draw.random() < 0.2:
            given = " ".join(f"-e {name}={shlex.quote(value)}" for name, value in self.variables().items())
            image = f"-v {shlex.quote(self.value('/a:/b'))} vllm/vllm-openai:{self.value('v0.33.0')}"
            text = f"docker run {given} {image} {' '.join(words)}"
        return text

    def settings(self) -> dict[str, Any]:
        """A file that a server is told to read."""
        draw = self._draw
        found = {
            "kv_cache_config": {"dtype": self.value("fp8"), "tokens_per_block": 64, "password": self.secret()},
            "tensor_parallel_size": draw.choice([2, "2", None, 1 << 70, self.odd()]),
            "remote_url": f"redis://:{self.secret()}@h:1",
            "env_overrides": self.variables(),
            "hf_token": self.secret(),
            "model_kwargs": self.nested(),
            "kv_connector_config": {"connector": self.value("kvbm"), "server_url": f"tcp://u:{self.secret()}@h:1"},
            "chunk_size": self.value("256"),
            self.value("x"): self.odd(),
        }
        return {key: found[key] for key in draw.sample(list(found), draw.randint(1, len(found)))}

    # -- files -----------------------------------------------------------------------------------------

    def container(self) -> dict[str, Any]:
        draw = self._draw
        words = self.command()
        split = draw.randint(1, len(words))
        scripted = draw.random() < 0.3
        found: dict[str, Any] = {
            "name": self.value("main"),
            "image": self.value(f"vllm/vllm-openai:v0.33.0@{_DIGEST}"),
            "command": ["bash", "-c"] if scripted else words[:split],
            "args": [self.script()] if scripted else words[split:],
            "env": [{"name": name, "value": value} for name, value in self.variables().items()],
            "envFrom": draw.choice([[], [{"secretRef": {"name": "s"}}], [{"configMapRef": {"name": "c"}}]]),
            "volumeMounts": [
                {"name": "c", "mountPath": self.value("/c")},
                {"name": "kv", "mountPath": self.value("/kv")},
            ],
        }
        if draw.random() < 0.3:
            found["workingDir"] = self.value("/workspace")
        return found

    def pod(self) -> dict[str, Any]:
        volumes = [
            {"name": "c", "configMap": {"name": "c"}},
            {"name": "kv", "persistentVolumeClaim": {"claimName": "kv"}},
        ]
        return {"containers": [self.container()], "volumes": volumes}

    def around(self) -> list[dict[str, Any]]:
        """What stands beside a workload: a ConfigMap and a Secret."""
        config = {
            "x.yaml": yaml.safe_dump(_plain(self.settings())),
            "run.sh": self.script(),
            self.value("k"): self.odd(),
        }
        return [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": config},
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "s"},
                "stringData": {"VLLM_X": self.secret()},
                "data": {"HF_TOKEN": self.secret()},
            },
        ]

    def objects(self) -> list[dict[str, Any]]:
        metadata = {"name": self.value("d"), "annotations": {"last": f"--api-key {self.secret()}", "x": self.shaped()}}
        kind = self._draw.choice(["Deployment", "StatefulSet", "Pod", self.odd()])
        spec: Any = self.pod() if kind == "Pod" else {"template": {"metadata": metadata, "spec": self.pod()}}
        found = {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": metadata,
            "spec": spec,
            "status": {"t": self.secret()},
        }
        return [found, *self.around()]

    def compose(self) -> list[dict[str, Any]]:
        service_ = self.container()
        service_ |= {
            "environment": self.variables(),
            "volumes": [self.value("kv:/kv")],
            "entrypoint": service_["command"],
        }
        service_["command"] = self._draw.choice([service_["args"], " ".join(map(str, service_["args"]))])
        return [{"name": self.value("p"), "services": {self.value("engine"): service_}, "volumes": {"kv": None}}]

    def graph(self) -> list[dict[str, Any]]:
        draw = self._draw
        parts = {self.value(name): self.container() for name in draw.sample(["Frontend", "prefill", "decode", "w"], 2)}
        types = ["frontend", "worker", "prefill", self.odd()]
        if draw.random() < 0.5:
            services = {
                name: {
                    "componentType": draw.choice(types),
                    "envs": [{"name": "HF_TOKEN", "value": self.secret()}],
                    "envFromSecret": self.value("s"),
                    "extraPodSpec": {"mainContainer": container},
                }
                for name, container in parts.items()
            }
            spec: dict[str, Any] = {"services": services, "envs": [{"name": "API_KEY", "value": self.secret()}]}
        else:
            components = [
                {"name": name, "type": draw.choice(types), "podTemplate": {"spec": {"containers": [container]}}}
                for name, container in parts.items()
            ]
            spec = {"components": components}
        version = draw.choice(["nvidia.com/v1alpha1", "nvidia.com/v1beta1"])
        graph = {"apiVersion": version, "kind": "DynamoGraphDeployment", "metadata": {"name": "g"}, "spec": spec}
        return [graph, *self.around()]

    def production_stack(self) -> list[dict[str, Any]]:
        env = [{"name": name, "value": value} for name, value in self.variables().items()]
        extra = {"tensorParallelSize": self._draw.choice([2, self.odd()]), "extraArgs": self.flags("vllm")}
        spec = model_spec(hf_token=self.secret(), env=env, vllmConfig=extra, modelURL=self.value("org/m"))
        return [stack(spec, version=None, engines={"vllmApiKey": self.secret(), "x": self.odd()})["values.yaml"]]

    def model_service(self) -> list[dict[str, Any]]:
        env = [{"name": name, "value": value} for name, value in self.variables().items()]
        pool = workload(*self.flags("vllm"), container={"env": env})
        uri = self._draw.choice(["hf://org/m", f"s3://u:{self.secret()}@b/m", self.value("pvc://c/m")])
        return [modelservice(pool, version=None, artifacts={"uri": uri})["values.yaml"]]

    def kserve(self) -> list[dict[str, Any]]:
        env = [{"name": name, "value": value} for name, value in self.variables().items()]
        if self._draw.random() < 0.5:
            uri = self.value(f"s3://u:{self.secret()}@b/m")
            return [service({"env": env, "args": self.flags("vllm")}, model={"uri": uri}), *self.around()]
        given = predictor(args=self.flags("vllm"), env=env, runtime="engine-runtime")
        return [given, runtime({"args": self.flags("vllm"), "env": env})]

    def file(self) -> Hostile:
        """The whole file, and what goes with it."""
        draw = self._draw
        self._beside["x.yaml"] = yaml.safe_dump(_plain(self.settings())).encode()
        self._beside["lmcache.yaml"] = yaml.safe_dump(_plain(self.settings())).encode()
        documents: list[Callable[[], list[dict[str, Any]]]] = [
            *(self.objects, self.compose, self.graph, self.production_stack, self.model_service, self.kserve)
        ]
        if draw.random() < 0.4:
            text, name = self.script(), "serve.sh"
        elif draw.random() < 0.03:
            text, name = yaml.safe_dump(_plain(self.settings())), "settings.yaml"
        else:
            name = draw.choice(["deploy.yaml", "values.yaml", "a.yml", "a.json"])
            text = self.spelled(draw.choice(documents)(), as_json=name.endswith("json"))
        if draw.random() < 0.05:
            self._more["x.yaml"] = self._beside["x.yaml"]
        data = self.spoiled(text.encode("utf-8", "surrogatepass"))
        return Hostile(
            draw.choice([name, name, f"../../{name}", f"\u202e{name}"]), data, self._plain, self._beside, self._more
        )

    def spelled(self, documents: list[dict[str, Any]], *, as_json: bool) -> str:
        """The documents as a file, spelled as a hostile writer might."""
        draw = self._draw
        plain = _plain(documents)
        if as_json:
            return json.dumps(plain[0])
        text: str = yaml.safe_dump_all(plain, allow_unicode=draw.random() < 0.5, width=draw.choice([80, 1 << 20]))
        lines = text.split("\n")
        for _ in range(draw.choice([0, 1, 2] if self._usual < 0.9 else [0])):
            lines.insert(draw.randint(0, len(lines)), self.yaml_trick())
        if draw.random() < 0.2:
            lines.insert(0, f"# password: {self.secret()}")
        return "\n".join(lines)

    def yaml_trick(self) -> str:
        draw = self._draw
        bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
        )
        return draw.choice(
            [
                bomb,
                "a: " + "[" * draw.choice([50, 5_000]),
                "a: {" * draw.choice([50, 3_000]),
                "  " * draw.choice([10, 2_000]) + "a: 1",
                "kind: Deployment",
                "kind: Deployment\nkind: Pod",
                f"<<: {{hf_token: {self.secret()}}}",
                f"!!python/object/apply:os.system ['{self.harmful()}']",
                f"x: !!python/name:os.system {self.secret()}",
                f"{self.shaped()}: x",
                f"? [{self.shaped()}]\n: x",
                f"x: !!binary {self.secret()}",
                "x: 0x" + "f" * 400,
                "x: 1" + "0" * 6_000,
                "x: 1:30:00",
                "---",
                "...",
                "%YAML 9.9",
                "\t- x",
                "x: |\n  " + "y" * 70_000,
                "x: '" + "y" * 300,
                f"# {self.secret()}",
                "--- !!set {a, b}",
                "x: &x [*x]",
            ]
        )

    def spoiled(self, data: bytes) -> bytes:
        """The content as it is mostly, or cut, in another encoding, or far too large."""
        draw = self._draw
        chance = draw.random()
        if chance < 0.9:
            return data
        if chance < 0.92:
            return data[: draw.randint(0, len(data))]
        if chance < 0.93:
            return data.decode("utf-8", "replace").encode("utf-16")
        if chance < 0.94:
            return b"\xef\xbb\xbf" + data
        if chance < 0.95:
            return data + b"\xff\xfe"
        if chance < 0.96:
            return data.replace(b"\n", b"\r\n")
        if chance < 0.97:
            at = draw.randint(0, len(data))
            return data[:at] + b"\0" + data[at:]
        if chance < 0.98:
            return data * draw.choice([2, 20])
        line = draw.choice([b"vllm serve " + b"x" * (10 << 20), b"a: " + b"[" * (1 << 20), b"x" * (10 << 20)])
        return line if draw.random() < 0.2 else data


def _plain(value: Any) -> Any:
    """The value without aliases of equal parts, which YAML would write as anchors, and without lone surrogates."""
    if isinstance(value, Mapping):
        return {_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode()
