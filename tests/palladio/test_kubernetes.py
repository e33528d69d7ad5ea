"""The manifests of deploy/kubernetes fit each other, the server's flags and its routes."""

import copy
import functools
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from palladio.flags.host_environment import DEFAULT_PORT
from palladio.flags.server_args import parse_server_args
from palladio.http.routes.routes_admin import admin_router
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.config.kv_events_config import KVEventsSettings

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
BUILT = ("one-pod", "keys", "slice", "pool", "monitoring")
SCHEMAS = "1.34"  # Kubernetes'
MODELS = {"HTTPRoute": "gateway-api", "ServiceMonitor": "prometheus-operator"}  # kind: package of npm
NODE_FOLDER = FOLDER.parents[1] / ".venv-deploy"
OWN_KINDS = {"LeaderWorkerSet", "InferencePool", "HTTPRoute", "ServiceMonitor"}  # of extensions


@functools.cache
def objects(name: str) -> dict[str, dict[str, Any]]:
    """As they are in the files, by kind, and further ones of a kind by kind and name; patches are left out."""
    kustomization = yaml.safe_load((FOLDER / name / "kustomization.yaml").read_text(encoding="utf-8"))
    paths = [FOLDER / name / path for path in kustomization["resources"]]
    found = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]
    by_kind: dict[str, dict[str, Any]] = {}
    for each in found:
        kind = each["kind"]
        by_kind[f"{kind}/{each['metadata']['name']}" if kind in by_kind else kind] = each
    assert len(by_kind) == len(found)
    return by_kind


def pods() -> dict[str, dict[str, Any]]:
    """The templates of pods: those that serve HTTP, and a slice's worker."""
    group = objects("slice")["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    server = objects("one-pod")["Deployment"]["spec"]["template"]
    return {"server": server, "leader": group["leaderTemplate"], "worker": group["workerTemplate"]}


def container(pod: str) -> dict[str, Any]:
    (only,) = pods()[pod]["spec"]["containers"]
    return only


@pytest.mark.parametrize("name", BUILT)
def test_all_files_are_there_and_used(name: str) -> None:
    folder = FOLDER / name
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    patches = [patch["path"] for patch in kustomization.get("patches", ()) if "path" in patch]
    named = {*kustomization["resources"], *patches}
    assert all((folder / path).exists() for path in named)
    assert {path.name for path in folder.iterdir()} == {path for path in named if "/" not in path} | {
        "kustomization.yaml"
    }


@pytest.mark.parametrize("pod", ["server", "leader"])
def test_probes_ask_routes_that_need_no_key(pod: str) -> None:
    routes = (FOLDER.parents[1] / "http" / "routes" / "routes_admin.py").read_text(encoding="utf-8")
    assert admin_router.__module__.endswith("routes_admin")
    probes = {name: container(pod)[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {"startup": "/health", "readiness": "/ready", "liveness": "/livez"}
    assert all(f'@router.get("{path}"' in routes for path in paths.values())
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {"http"}
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 1800
    assert "livenessProbe" not in container("worker"), "it serves no HTTP"


@pytest.mark.parametrize("pod", ["server", "leader", "worker"])
def test_running_requests_have_time_to_finish(pod: str) -> None:
    drain = HttpConfig().drain_timeout
    grace = pods()[pod]["spec"]["terminationGracePeriodSeconds"]
    command, seconds = container(pod)["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    if pod == "worker":
        leader = int(container("leader")["lifecycle"]["preStop"]["exec"]["command"][1])
        assert leader + drain < int(seconds) < grace, "it stays while the leader drains"
    else:
        assert int(seconds) + drain < grace


@pytest.mark.parametrize("pod", ["server", "leader", "worker"])
def test_arguments_are_flags_and_ports_are_the_servers(pod: str) -> None:
    args = parse_server_args(container(pod)["args"]).args
    assert args.source.model_path == "/models/my-model"
    ports = {port["name"]: port["containerPort"] for port in container(pod).get("ports", ())}
    assert ports.get("http", args.http.port) == args.http.port
    if pod == "leader":
        assert (ports["hosts"], ports["coordinator"]) == (DEFAULT_PORT, DEFAULT_PORT + 1)


def test_servers_of_a_pool_publish_their_prefixes_each_under_its_own_address() -> None:
    patch = yaml.safe_load((FOLDER / "pool" / "many-servers.yaml").read_text(encoding="utf-8"))
    (change,) = patch["spec"]["template"]["spec"]["containers"]
    assert change["name"] == container("server")["name"], "else it would be a second container"
    args = parse_server_args(change["args"]).args
    assert args.source.model_path == parse_server_args(container("server")["args"]).args.source.model_path
    events = KVEventsSettings.of(args.cache.kv_events_config, 1)
    assert events is not None
    assert events.topic.split("@") == ["kv", "$(POD_IP)", "my-model"]
    assert [(variable["name"], variable["valueFrom"]["fieldRef"]["fieldPath"]) for variable in change["env"]] == [
        ("POD_IP", "status.podIP")
    ]
    ports = [f"tcp://*:{port['containerPort']}" for port in change["ports"]]
    assert [events.endpoint, events.replay_endpoint] == ports


def test_compiled_programs_outlive_pods() -> None:
    for name, pod, modes in (("one-pod", "server", ["ReadWriteOnce"]), ("slice", "leader", ["ReadWriteMany"])):
        (volume,) = [one for one in pods()[pod]["spec"]["volumes"] if one["name"] == "cache"]
        (claim,) = [
            one
            for one in objects(name).values()
            if one["kind"] == "PersistentVolumeClaim"
            and one["metadata"]["name"] == volume["persistentVolumeClaim"]["claimName"]
        ]
        assert claim["spec"]["accessModes"] == modes
    text = (FOLDER / "pool" / "kustomization.yaml").read_text(encoding="utf-8")
    (patch,) = [
        yaml.safe_load(one["patch"])
        for one in yaml.safe_load(text)["patches"]
        if one.get("target", {}).get("name") == "palladio-cache"
    ]
    assert patch == [{"op": "replace", "path": "/spec/accessModes", "value": ["ReadWriteMany"]}]


def test_pods_have_no_more_rights_than_they_need() -> None:
    file = (FOLDER.parent / "Dockerfile").read_text(encoding="utf-8")
    (user,) = re.findall(r"^USER (\d+):\1$", file, re.MULTILINE)
    assert f"useradd --uid {user} " in file
    server = pods()["server"]["spec"]["securityContext"]
    assert server["runAsNonRoot"]
    assert {server[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}
    for pod in pods():
        assert pods()[pod]["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pods()[pod]["spec"]["automountServiceAccountToken"] is False
        assert container(pod)["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"cpu", "memory"} <= container(pod)["resources"]["requests"].keys()


def test_network_policies_open_http_and_show_kv_events_to_the_picker_alone() -> None:
    http = {"ports": [{"port": HttpConfig().port}]}
    assert objects("one-pod")["NetworkPolicy"]["spec"]["ingress"] == [http]
    labels = pods()["worker"]["metadata"]["labels"]
    first, hosts = objects("slice")["NetworkPolicy"]["spec"]["ingress"]
    assert first == http
    (peer,) = hosts["from"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    pool = yaml.safe_load((FOLDER / "pool" / "network-policy.yaml").read_text(encoding="utf-8"))
    change = yaml.safe_load((FOLDER / "pool" / "many-servers.yaml").read_text(encoding="utf-8"))
    (events,) = change["spec"]["template"]["spec"]["containers"]
    first, picker = pool["spec"]["ingress"]
    assert first == http
    assert [port["port"] for port in picker["ports"]] == [port["containerPort"] for port in events["ports"]]
    assert picker["from"] == [{"podSelector": {"matchLabels": {"app": "palladio-epp"}}}]


def test_keys_come_from_a_secret() -> None:
    patch = yaml.safe_load((FOLDER / "keys" / "with-keys.yaml").read_text(encoding="utf-8"))
    pod = patch["spec"]["template"]["spec"]
    (change,) = pod["containers"]
    args = parse_server_args(change["args"]).args
    assert args.source.model_path == "/models/my-model"
    (mount,) = change["volumeMounts"]
    (volume,) = pod["volumes"]
    assert mount["name"] == volume["name"]
    assert args.http.api_key_file == f"{mount['mountPath']}/keys"
    text = (FOLDER / "keys" / "kustomization.yaml").read_text(encoding="utf-8")
    assert f"kubectl create secret generic {volume['secret']['secretName']} --from-file=keys" in text


def test_all_hosts_of_a_slice_run_the_same_command_on_all_chips() -> None:
    group = objects("slice")["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    leader, worker = container("leader"), container("worker")
    for name in ("args", "resources", "image", "volumeMounts"):
        assert leader[name] == worker[name], name
    assert pods()["leader"]["spec"]["nodeSelector"] == pods()["worker"]["spec"]["nodeSelector"]
    chips = int(leader["resources"]["limits"]["google.com/tpu"])
    parallel = parse_server_args(leader["args"]).args.parallel
    topology = pods()["leader"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    rows, columns = map(int, topology.split("x"))
    assert group["size"] * chips == parallel.tp_size == rows * columns
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart", "an engine of several hosts is not restarted"
    assert parallel.nnodes is None, "the platform says it"


def test_selectors_find_the_pods() -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in pods().items()}
    one, slice_, pool = objects("one-pod"), objects("slice"), objects("pool")
    for selector in (
        one["Service"]["spec"]["selector"],
        one["Deployment"]["spec"]["selector"]["matchLabels"],
        one["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        pool["InferencePool"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels["server"].items()
    assert slice_["Service"]["spec"]["selector"].items() <= labels["leader"].items()
    assert not slice_["Service"]["spec"]["selector"].items() <= labels["worker"].items(), "it serves no HTTP"
    assert slice_["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels["worker"].items()
    assert pool["InferencePool"]["spec"]["targetPorts"] == [{"number": HttpConfig().port}]
    (rule,) = pool["HTTPRoute"]["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", pool["InferencePool"]["metadata"]["name"])
    monitor = objects("monitoring")["ServiceMonitor"]["spec"]
    for name in ("one-pod", "slice"):
        text = (FOLDER / name / "kustomization.yaml").read_text(encoding="utf-8")
        (pairs,) = yaml.safe_load(text)["labels"]
        assert monitor["selector"]["matchLabels"].items() <= pairs["pairs"].items()
        assert {port["name"] for port in objects(name)["Service"]["spec"]["ports"]} == {monitor["endpoints"][0]["port"]}
    assert monitor["endpoints"][0]["path"] == "/metrics"


@pytest.mark.parametrize("pod", ["server", "leader", "worker"])
def test_volumes_are_those_of_the_image(pod: str) -> None:
    file = (FOLDER.parent / "Dockerfile").read_text(encoding="utf-8")
    (volumes,) = re.findall(r"^VOLUME (.*)", file, re.MULTILINE)
    mounts = {mount["mountPath"]: mount["name"] for mount in container(pod)["volumeMounts"]}
    assert set(volumes.split()) == mounts.keys() - {"/models"}
    assert {volume["name"] for volume in pods()[pod]["spec"]["volumes"]} == set(mounts.values())


@pytest.mark.parametrize("name", BUILT)
def test_each_file_has_the_schema_of_its_kind(name: str) -> None:
    """Also where there is no kubectl to apply the patches."""
    validator = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate (make deploy-check)")
    for kind, each in objects(name).items():
        if kind.partition("/")[0] not in OWN_KINDS:
            validator.validate(each, SCHEMAS, strict=True)


def complaints(checked: Sequence[dict[str, Any]]) -> str:
    """What the types of a kind say, and then, if nothing, its validator, which does not see fields that it lacks."""
    if shutil.which("node") is None or not (NODE_FOLDER / "node_modules" / ".installed").exists():
        pytest.skip("needs node and packages of npm (make deploy-check)")
    lines = []
    for each in checked:
        kind = each["kind"]
        module = f"@kubernetes-models/{MODELS[kind]}/{each['apiVersion']}/{kind}"
        fields = {name: each[name] for name in each.keys() - {"apiVersion", "kind"}}  # the class has these
        lines += [f"import {{{kind}}} from {json.dumps(module)};", f"new {kind}({json.dumps(fields)}).validate();"]
    with tempfile.TemporaryDirectory(dir=NODE_FOLDER) as name:
        file = Path(name) / "check.mjs"
        file.write_text("\n".join(lines), encoding="utf-8")
        types = ["--noEmit", "--allowJs", "--checkJs", "--strict", "--skipLibCheck", "--module", "nodenext"]
        for command in ([NODE_FOLDER / "node_modules" / ".bin" / "tsc", *types], ["node"]):
            done = subprocess.run([*command, file], check=False, capture_output=True, text=True)
            if done.returncode != 0:
                return done.stdout + done.stderr
    return ""


def test_routes_and_monitors_have_the_types_of_their_kinds() -> None:
    checked = [objects("pool")["HTTPRoute"], objects("monitoring")["ServiceMonitor"]]
    assert {each["kind"] for each in checked} == MODELS.keys()
    assert complaints(checked) == ""
    route, monitor = copy.deepcopy(checked)
    route["spec"]["rules"][0]["timeouts"]["requests"] = "0s"
    monitor["spec"]["endpoints"][0]["intervall"] = "15s"
    found = complaints([route, monitor])
    assert ("'\"requests\"' does not exist" in found, "'\"intervall\"' does not exist" in found) == (True, True), found
    route = copy.deepcopy(checked[0])
    route["spec"]["rules"][0]["timeouts"]["request"] = "none"
    assert "timeouts/request must match pattern" in complaints([route])


@pytest.mark.parametrize("pod", ["server", "leader", "worker"])
def test_each_pod_has_the_schema_of_pods(pod: str) -> None:
    """Those in a LeaderWorkerSet, too."""
    validator = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate (make deploy-check)")
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": pods()[pod]["spec"]}
    validator.validate(made, SCHEMAS, strict=True)
    (only,) = made["spec"]["containers"]
    broken = made | {"spec": made["spec"] | {"containers": [only | {"imagePullPolice": "Always"}]}}
    with pytest.raises(validator.ValidationError, match="imagePullPolice"):
        validator.validate(broken, SCHEMAS, strict=True)


@pytest.mark.parametrize("name", BUILT)
def test_kubernetes_takes_them(name: str) -> None:
    """Built by kubectl, and checked with the schemas of Kubernetes: see `make deploy-check`."""
    validator = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate (make deploy-check)")
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    command = ["kubectl", "kustomize", str(FOLDER / name)]
    built = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kinds = []
    for each in yaml.safe_load_all(built):
        kinds.append(each["kind"])
        if each["kind"] not in OWN_KINDS:
            validator.validate(each, SCHEMAS, strict=True)
        if each["kind"] == "Deployment" and name == "pool":
            assert each["spec"]["replicas"] > 1
            volumes = each["spec"]["template"]["spec"]["volumes"]
            assert {"name": "data", "emptyDir": {}} in volumes, "a claim is of one pod"
    assert len(kinds) >= 1
    claims = {"one-pod": 2, "keys": 2, "slice": 1, "pool": 1}  # the data of a pool's servers go with them
    assert kinds.count("PersistentVolumeClaim") == claims.get(name, 0)
