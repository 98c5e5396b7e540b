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
        if probe.get("periodSeconds", 0) * probe.get("failureThreshold", 0) < e.budget_s:
            yield f"{name}: a start may take {e.budget_s:.0f} s"
        if float(value(vllm(template), "VLLM_ENGINE_READY_TIMEOUT_S") or 0) < e.budget_s:
            yield f"{name}: vLLM itself gives up earlier"
    for deployment in of(docs, "Deployment"):
        if deployment["spec"].get("progressDeadlineSeconds", 0) < e.budget_s:
            yield "the rollout counts as failed before the start is over"


@policy
def probes_ask_where_there_is_an_answer(docs, e) -> Iterator[str]:
    for name, template in serving(docs).items():
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = vllm(template).get(kind, {})
            if not probe.get("timeoutSeconds"):
                yield f"{name}: {kind} has no time-out"
            command = probe.get("exec", {}).get("command")
            if name == "server" and kind == "livenessProbe":
                if command != ["python3", "-m", "workshop.servers.kubernetes.pod", "works", "8000"]:
                    yield "server: /health answers while the engine hangs"
            elif name == "server" and probe.get("httpGet", {}).get("path") != "/health":
                yield f"server: {kind} must ask /health, the path without a key"
            if name == "worker" and not command:
                yield f"worker: {kind} must be a command, as a headless vLLM has no port"


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
    for name, template in templates(docs).items():
        weights_volume = volume(template, mount(containers(template)[-1], "/models").get("name"))
        if weights_volume.get("persistentVolumeClaim", {}).get("claimName") not in names:
            yield f"{name}: /models is not the volume"
        if bool(mount(containers(template)[-1], "/models").get("readOnly")) != (name != "weights"):
            yield f"{name}: only the download writes to the volume"


@policy
def a_job_downloads_and_servers_wait(docs, e) -> Iterator[str]:
    jobs = of(docs, "Job")
    if len(jobs) != 1 or containers(jobs[0]["spec"]["template"])[0]["command"][:4] != [
        "python3",
        "-m",
        "workshop.servers.kubernetes.pod",
        "download",
    ]:
        yield "there is no Job that downloads"
        return
    hub, folder = containers(jobs[0]["spec"]["template"])[0]["command"][4:]
    job = jobs[0]["spec"]
    if job.get("backoffLimit", 6) < 10 or job["template"]["spec"]["restartPolicy"] != "OnFailure":
        yield "the download must go on after a break"
    if "ttlSecondsAfterFinished" not in job:
        yield "a finished Job cannot be applied again with another image: it must go by itself"
    for name, template in serving(docs).items():
        waits = template["spec"].get("initContainers", [{}])[0]
        if waits.get("command") != [
            "python3",
            "-m",
            "workshop.servers.kubernetes.pod",
            "wait",
            folder,
        ]:
            yield f"{name} does not wait for {folder}"
        if vllm(template)["args"][0] != folder:
            yield f"{name} serves another folder"
        if value(vllm(template), "HF_HUB_OFFLINE") != "1":
            yield f"{name} may ask the Hub, though the weights are there"
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
    server = serving(docs)["server"]
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
    middleware = [word for word in vllm(server)["args"] if word.startswith("--middleware")]
    if middleware[-1:] != ["--middleware=workshop.guard.auth.RequireKey"]:
        yield "the guard must stand in front of all paths: the last middleware"
    download = containers(templates(docs)["weights"])[0]
    token = env(download).get("HF_TOKEN", {}).get("valueFrom", {}).get("secretKeyRef", {})
    if token.get("name") != "hf-token" or not token.get("optional"):
        yield "the download's token must be the Secret's, and may be missing"


@policy
def the_code_that_pods_run_is_mounted(docs, e) -> Iterator[str]:
    maps = {doc["metadata"]["name"]: doc["data"] for doc in of(docs, "ConfigMap")}
    for name, template in templates(docs).items():
        for container in containers(template):
            code = value(container, "PYTHONPATH")
            config_map = volume(template, mount(container, code).get("name")).get("configMap", {})
            files = {
                item["path"]: maps.get(config_map.get("name"), {}).get(item["key"])
                for item in config_map.get("items", [])
            }
            if not files.get("workshop/guard/auth.py") or not files.get(
                "workshop/servers/kubernetes/pod.py"
            ):
                yield f"{name}: {container['name']} lacks the workshop's modules"


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
        for container in containers(template):
            if not value(container, "USER"):
                yield f"{name}: {container['name']}: getpass.getuser() fails for a user that has no name"
            places = [value(container, "HOME"), "/tmp"]
            if container is vllm(template) and name != "weights":
                places += [
                    value(container, "VLLM_CACHE_ROOT"),
                    value(container, "TRITON_CACHE_DIR"),
                    value(container, "TORCHINDUCTOR_CACHE_DIR"),
                ]
            for place in places:
                inside = [
                    entry
                    for entry in container["volumeMounts"]
                    if place
                    and (place + "/").startswith(entry["mountPath"] + "/")
                    and "emptyDir" in volume(template, entry["name"])
                ]
                if not inside:
                    yield f"{name}: {container['name']}: {place or 'a cache'} cannot be written"


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
