"""What every manifest here must have, one function a point: each returns the problems that it finds.

They read the resolved resources, as a cluster would get them; `Expected` comes from outside: published sizes, vendors'
names, this project's assumption about the volume. Here: size, start, volumes, keys; the rest is in k8s_policies_more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from k8s_read import (
    GIB,
    GPU,
    Expected,
    bytes_of,
    containers,
    env,
    mount,
    of,
    serving,
    templates,
    tolerates_gpu_nodes,
    value,
    vllm,
    volume,
)

POLICIES: dict[str, Callable] = {}
HANG_PROBE = ["python3", "-P", "-m", "workshop.servers.hang", "8000"]
LONGEST_STEP_S = 300  # vLLM's VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS


def policy(check: Callable) -> Callable:
    POLICIES[check.__name__] = check
    return check


@policy
def there_is_one_server_of_the_planned_size(docs, e) -> Iterator[str]:
    groups = of(docs, "LeaderWorkerSet")
    if e.nodes == 1:
        if [d["spec"].get("replicas") for d in of(docs, "Deployment")] != [1] or groups:
            yield "one node needs one Deployment of one replica"
    elif [g["spec"]["leaderWorkerTemplate"].get("size") for g in groups] != [e.nodes]:
        yield f"{e.nodes} nodes need a LeaderWorkerSet of that size"


@policy
def a_start_may_take_its_budget(docs, e) -> Iterator[str]:
    for name, template in serving(docs).items():
        probe = vllm(template).get("startupProbe", {})
        allowed_s = probe.get("periodSeconds", 0) * probe.get("failureThreshold", 0)
        if name == "server" and allowed_s < e.budget_s:
            yield f"{name}: a start may take {e.budget_s:.0f} s"
        if float(value(vllm(template), "VLLM_ENGINE_READY_TIMEOUT_S") or 0) < e.budget_s:
            yield f"{name}: vLLM itself gives up earlier"
    for deployment in of(docs, "Deployment"):
        if deployment["spec"].get("progressDeadlineSeconds", 0) < e.budget_s:
            yield "the rollout counts as failed before the start is over"


@policy
def probes_ask_where_there_is_an_answer(docs, e) -> Iterator[str]:
    server = vllm(serving(docs)["server"])
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = server.get(kind, {})
        if not probe.get("timeoutSeconds"):
            yield f"server: {kind} has no time-out"
        if kind == "livenessProbe" and e.guard:
            if probe.get("exec", {}).get("command") != HANG_PROBE:
                yield "server: /health answers while the engine hangs"
            if probe.get("timeoutSeconds", 0) <= LONGEST_STEP_S:
                yield "server: the probe is cut before it has seen that nothing moves"
        elif probe.get("httpGet", {}).get("path") != "/health":
            yield f"server: {kind} must ask /health, the path without a key"
    for name, template in serving(docs).items():
        probes = [kind for kind in vllm(template) if kind.endswith("Probe")]
        if name == "worker" and probes:
            yield f"worker: a headless vLLM has no port for {', '.join(probes)}"


@policy
def shared_memory_is_memory_with_a_limit(docs, e) -> Iterator[str]:
    for name, template in serving(docs).items():
        shm = volume(template, mount(vllm(template), "/dev/shm").get("name")).get("emptyDir", {})
        if shm.get("medium") != "Memory":
            yield f"{name}: /dev/shm is not memory"
        if bytes_of(shm.get("sizeLimit", "")) < e.gpus_per_node * GIB:
            yield f"{name}: /dev/shm has no limit, or less than 1 GiB a GPU"


@policy
def the_volume_holds_the_weights(docs, e) -> Iterator[str]:
    claims = of(docs, "PersistentVolumeClaim")
    for claim in claims:
        if (
            bytes_of(claim["spec"].get("resources", {}).get("requests", {}).get("storage", ""))
            < e.weight_bytes + GIB
        ):
            yield f"the volume is smaller than {e.weight_bytes / GIB:.0f} GiB of weights"
        if claim["spec"].get("accessModes") != [
            "ReadWriteMany" if e.nodes > 1 else "ReadWriteOnce"
        ]:
            yield "the volume's access mode does not suit the number of nodes"
    names = {claim["metadata"]["name"] for claim in claims}
    if e.claim:
        if names:
            yield "a volume is made beside the claim that is there"
        names = {e.claim}
    for name, template in templates(docs).items():
        weights_volume = volume(template, mount(containers(template)[-1], "/models").get("name"))
        if weights_volume.get("persistentVolumeClaim", {}).get("claimName") not in names:
            yield f"{name}: /models is not the volume"
        if bool(mount(containers(template)[-1], "/models").get("readOnly")) != (name != "weights"):
            yield f"{name}: only the download writes to the volume"


@policy
def a_job_downloads_and_servers_wait(docs, e) -> Iterator[str]:
    jobs = of(docs, "Job")
    for name, template in serving(docs).items():
        if value(vllm(template), "HF_HUB_OFFLINE") != "1":
            yield f"{name} may ask the Hub, though the weights are there"
    if e.claim:
        if jobs or any("initContainers" in part["spec"] for part in serving(docs).values()):
            yield "nothing is downloaded into a claim that is there, and nobody waits for it"
        return
    if len(jobs) != 1:
        yield "there is no Job that downloads"
        return
    job = jobs[0]["spec"]
    script = containers(job["template"])[0]["command"][-1].replace("\\\n", " ").splitlines()
    hub, folder = script[0].split()[2], script[0].split()[3].removeprefix("--local-dir=")
    if not script[0].startswith("hf download ") or not script[-1].startswith(f"touch {folder}/"):
        yield "the mark must come after the download"
    if containers(job["template"])[0]["command"][:2] != ["sh", "-ec"]:
        yield "the mark must not come where the download failed"
    if job.get("backoffLimit", 6) < 10 or job["template"]["spec"]["restartPolicy"] != "OnFailure":
        yield "the download must go on after a break"
    if "ttlSecondsAfterFinished" not in job:
        yield "a finished Job cannot be applied again with another image: it must go by itself"
    mark = script[-1].removeprefix("touch ")
    for name, template in serving(docs).items():
        waits = template["spec"].get("initContainers", [{}])[0].get("command", [""])
        if not waits[-1].startswith(f"until [ -e {mark} ]; do "):
            yield f"{name} does not wait for {mark}"
        if vllm(template)["args"][0] != folder:
            yield f"{name} serves another folder"
        if name == "server" and f"--served-model-name={hub}" not in vllm(template)["args"]:
            yield "requests must name the model by its Hub id"


@policy
def keys_come_from_secrets_and_stand_nowhere(docs, e) -> Iterator[str]:
    if of(docs, "Secret"):
        yield "a Secret does not belong into a file"
    for name, template in templates(docs).items():
        for container in containers(template):
            arguments = [*container.get("command", []), *container.get("args", [])]
            if any(word.startswith(("--api-key", "--hf-token")) for word in arguments):
                yield f"{name}: a key among the arguments"
            for variable, entry in env(container).items():
                if variable.endswith(("TOKEN", "KEY")) and "secretKeyRef" not in entry.get(
                    "valueFrom", {}
                ):
                    yield f"{name}: {variable} is not from a Secret"
    yield from _problems_of_the_servers_key(docs, e.guard)
    if e.claim:
        return
    download = containers(templates(docs)["weights"])[0]
    token = env(download).get("HF_TOKEN", {}).get("valueFrom", {}).get("secretKeyRef", {})
    if token.get("name") != "hf-token" or not token.get("optional"):
        yield "the download's token must be the Secret's, and may be missing"


def _problems_of_the_servers_key(docs: list[dict], guard: bool) -> Iterator[str]:
    server = serving(docs)["server"]
    middleware = [word for word in vllm(server)["args"] if word.startswith("--middleware")]
    own = env(vllm(server)).get("VLLM_API_KEY", {}).get("valueFrom", {}).get("secretKeyRef", {})
    if not guard:
        if own != {"name": "vllm-api-key", "key": "api-key"}:
            yield "vLLM's own key must be the Secret's"
        if middleware:
            yield "vLLM's own image has no guard"
        return
    key = value(vllm(server), "WORKSHOP_API_KEY_FILE")
    secret = volume(server, mount(vllm(server), key.rpartition("/")[0] or "-").get("name")).get(
        "secret", {}
    )
    if (
        secret.get("secretName") != "vllm-api-key"
        or not key.endswith("/api-key")
        or secret.get("defaultMode", 0o644) & 7
    ):
        yield "the server's key is not the Secret's file, closed to others"
    if value(vllm(server), "WORKSHOP_METRICS_KEY_FILE") != f"{key.rpartition('/')[0]}/metrics-key":
        yield "the guard does not know the scraper's key"
    if middleware[-1:] != ["--middleware=workshop.guard.auth.RequireKey"]:
        yield "the guard must stand in front of all paths: the last middleware"


@policy
def no_program_is_in_a_manifest(docs, e) -> Iterator[str]:
    """A command of a shell may test for a file, or run one program after another; no more."""
    if of(docs, "ConfigMap"):
        yield "a ConfigMap is no place for a program, and nothing else needs one"
    for name, template in templates(docs).items():
        for container in containers(template):
            probes = [entry for kind, entry in container.items() if kind.endswith("Probe")]
            for command in [
                [*container.get("command", []), *container.get("args", [])],
                *[probe.get("exec", {}).get("command", []) for probe in probes],
            ]:
                if "python" in str(command[:1]) and "-c" in command:
                    yield f"{name}: {container['name']} has Python in its arguments"
                steps = "\n".join(command).replace("\\\n", "").splitlines()
                if command[:1] == ["sh"] and len(steps) > 4:
                    yield f"{name}: {container['name']} has a script in its arguments"


@policy
def pods_are_restricted(docs, e) -> Iterator[str]:
    for name, template in templates(docs).items():
        spec, pod = template["spec"], template["spec"].get("securityContext", {})
        if pod.get("runAsNonRoot") is not True:
            yield f"{name} may run as root"
        if pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{name} has no seccomp profile"
        fixed = [
            field
            for field in ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")
            if field in pod
        ]
        if e.openshift and fixed:
            yield f"{name}: OpenShift assigns {', '.join(fixed)} itself"
        if not e.openshift and not (pod.get("runAsUser", 0) and pod.get("fsGroup", 0)):
            yield f"{name}: the image runs as root unless a user is named, and a new volume is root's"
        if any(spec.get(field) for field in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{name} shares namespaces with the node"
        if any("hostPath" in entry for entry in spec["volumes"]):
            yield f"{name} mounts the node's disk"
        for container in containers(template):
            own = container.get("securityContext", {})
            if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
                yield f"{name}: {container['name']} may gain privileges"
            if own.get("capabilities", {}).get("drop") != ["ALL"] or own.get(
                "capabilities", {}
            ).get("add"):
                yield f"{name}: {container['name']} keeps capabilities"


@policy
def a_user_without_a_home_can_write_its_caches(docs, e) -> Iterator[str]:
    for name, template in templates(docs).items():
        for container in template["spec"]["containers"]:
            if not value(container, "USER"):
                yield f"{name}: {container['name']}: getpass.getuser() fails for a user that has no name"
            home = value(container, "HOME")
            inside = [
                entry
                for entry in container["volumeMounts"]
                if home
                and (home + "/").startswith(entry["mountPath"] + "/")
                and "emptyDir" in volume(template, entry["name"])
            ]
            if not inside:
                yield f"{name}: {container['name']}: {home or 'a cache'} cannot be written"


@policy
def pods_get_the_planned_gpus(docs, e) -> Iterator[str]:
    for name, template in serving(docs).items():
        spec = template["spec"]
        if spec.get("nodeSelector") != {f"{GPU}.product": e.product}:
            yield f"{name} may land beside another GPU"
        if not tolerates_gpu_nodes(spec):
            yield f"{name} is kept off the GPU nodes"
    for name, template in templates(docs).items():
        for container in containers(template):
            size = container.get("resources", {})
            if not size.get("limits", {}).get("memory") or not size.get("requests", {}).get("cpu"):
                yield f"{name}: {container['name']} has no memory limit or asks for no processor"
    for name, template in serving(docs).items():
        size = vllm(template)["resources"]
        if not (size["requests"].get(GPU) == size["limits"].get(GPU) == str(e.gpus_per_node)):
            yield f"{name} needs {e.gpus_per_node} GPUs as request and limit"
        shm = next(
            (entry for entry in template["spec"]["volumes"] if entry["name"] == "shm"), {}
        ).get("emptyDir", {})
        if bytes_of(size["limits"].get("memory", "")) <= bytes_of(shm.get("sizeLimit", "")):
            yield f"{name}: /dev/shm counts as memory of the container"


@policy
def the_dtype_is_one_that_the_gpu_has(docs, e) -> Iterator[str]:
    for name, template in serving(docs).items():
        if not e.bfloat16 and "--dtype=half" not in vllm(template)["args"]:
            yield f"{name}: {e.product} has no bfloat16: --dtype=half"


def problems(docs: list[dict], expected: Expected) -> dict[str, list[str]]:
    """Return what each policy finds; only those that find something."""
    import k8s_policies_more  # noqa: F401 (it adds its own)

    results = {name: list(check(docs, expected)) for name, check in POLICIES.items()}
    return {name: lines for name, lines in results.items() if lines}
