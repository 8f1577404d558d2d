"""Failures before the engine runs: the way to the host, the container runtime, the registry.

Sources: texts of OpenSSH 9.2, paramiko 5.1, sudo 1.9, Docker 20.10 and 26.1, Podman 4.3 and 5.4,
nvidia-container-toolkit 1.17 and the CUDA runtime, as their programs print them.
"""

from __future__ import annotations

from gpufleet.engine.signatures.model import Kind, signature

_TRANSIENT = Kind.TRANSIENT

SSH = (
    signature("ssh.host_key_changed", ("Host key for server", "REMOTE HOST IDENTIFICATION HAS CHANGED"), "compare the fingerprint with the host's console, then `gpufleet hosts trust HOST --fingerprint SHA256:...`", r"Host key for server \S{1,300} does not match|REMOTE HOST IDENTIFICATION HAS CHANGED"),
    signature("ssh.unknown_host", "not found in known_hosts", "`gpufleet hosts trust HOST` shows the key and writes it down; an entry for another port has the form [host]:port"),
    signature("ssh.known_hosts_unreadable", "InvalidHostKey", "mend or remove the line of known_hosts that is named"),
    signature("ssh.too_many_keys", ("No existing session", "aximum authentication attempts exceeded", "Too many authentication failures"), "name one key for this host: `identity_file` in the inventory, `IdentitiesOnly yes` in ssh_config"),
    signature("ssh.passphrase", ("Private key file is encrypted", "encountered RSA key, expected OPENSSH key", "PasswordRequiredException"), "load the key into ssh-agent, or set the host's `passphrase` to a reference"),
    signature("ssh.auth", ("Authentication failed", "No authentication methods available", "Permission denied (publickey"), "check the host's `user` and `identity_file`: `ssh -v` with the same two shows what the server accepts", r"Authentication failed(?:\.|\s*$)|No authentication methods available|Permission denied \(publickey"),
    signature("ssh.maxstartups", "Error reading SSH protocol banner", "the server takes no more logins at once, or this is no SSH port: lower --forks, then try again", kind=_TRANSIENT),
    signature("ssh.sudo_password", ("sudo: a terminal is required", "sudo: a password is required", "sudo: no tty present", "sudo: sorry, you must have a tty"), "set the host's `sudo_password` to a reference, or allow the runtime without a password in sudoers"),
    signature("ssh.not_sudoer", ("is not in the sudoers file", "is not allowed to "), "use an account that may use sudo, or add this one to the group docker", r"is not in the sudoers file|is not allowed to (?:run|execute) .{1,400} on\b"),
)  # fmt: skip

RUNTIME = (
    signature("rt.not_found", ("docker", "podman", "nerdctl"), "install the container runtime, or set the host's `runtime_path`: a login without a terminal has a shorter PATH", r"\b(?:docker|podman|nerdctl): (?:command )?not found|command not found: (?:docker|podman|nerdctl)|Unknown command:? '?(?:docker|podman|nerdctl)"),
    signature("rt.socket_denied", "ermission denied while trying to connect to the ", "add the SSH user to the group docker and log in again, or set `become: auto`", r"ermission denied while trying to connect to the (?:[Dd]ocker|Podman)"),
    signature("rt.daemon_down", ("Cannot connect to the Docker daemon", "Is the docker daemon running", "Cannot connect to Podman"), "start the container runtime on the host (`systemctl start docker`); for a rootless one check DOCKER_HOST and XDG_RUNTIME_DIR", kind=_TRANSIENT),
    signature("rt.no_gpu_driver", ("could not select device driver", "unknown or invalid runtime name: nvidia", "Unknown runtime specified nvidia"), "install nvidia-container-toolkit, run `nvidia-ctk runtime configure --runtime=docker`, restart docker; docker from a snap cannot use it", r'could not select device driver "(?!cdi")[^"]{0,100}" with capabilities|runtime name: nvidia|Unknown runtime specified nvidia'),
    signature("rt.cdi_off", 'could not select device driver "cdi"', "docker does not read CDI specifications: set `features: {cdi: true}` in its daemon.json and restart it (docker 25 to 28.1; later ones need no setting)"),
    signature("rt.count_and_ids", "cannot set both Count and DeviceIDs on device request", "a list of devices needs double quotes that reach docker: --gpus '\"device=0,1\"'"),
    signature("rt.cdi", "unresolvable CDI device", "write the host's CDI specification again: `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, with --device-name-strategy=uuid before toolkit 1.15; it is stale after each MIG change"),
    signature("rt.rootless_cgroup", "bpf_prog_query(BPF_CGROUP_DEVICE) failed", "a rootless runtime cannot set device rules: use CDI, or no-cgroups = true in the toolkit's config.toml"),
    signature("rt.unknown_device", "unknown device", "that GPU or slice is gone (MIG changed, card lost, restart): `gpufleet hosts facts HOST`, then deploy again", r"device error: [^:]{1,200}: unknown device"),
    signature("rt.libnvml", ("load library failed: libnvidia-ml", "nvml error: driver not loaded", "nvml error: driver/library version mismatch", "NVML: Driver/library version mismatch"), "the driver is absent, or was updated without a restart of the host: restart it or reload the driver"),
    signature("rt.nvml_lost", "Failed to initialize NVML: ", "the container lost its GPU (systemctl daemon-reload does that): it must be created anew, a restart is not enough; CDI keeps it", r"Failed to initialize NVML: (?:Unknown Error|Insufficient Permissions|GPU is lost)"),
    signature("rt.driver_cuda", ("unsatisfied condition: cuda>=", "driver on your system is too old", "PTX was compiled with an unsupported toolchain", "CUDA driver version is insufficient"), "the image's CUDA is newer than the driver: update the driver (CUDA 13 needs R580), take an image tag with an older CUDA (-cu129), or set VLLM_ENABLE_CUDA_COMPATIBILITY=1 in engine.env on data-centre cards"),
    signature("rt.port", ("ddress already in use", "port is already allocated", "Failed to bind port"), "something else listens there: choose other `ports` for the host, or end what holds the port", r"bind: address already in use|port is already allocated|\[Errno 98\][^\n]{0,200}ddress already in use|Failed to bind port|listen tcp\S{0,3} \S{1,100}: [^\n]{0,100}address already in use"),
    signature("rt.name_conflict", "ontainer name ", "an earlier run left it behind: `gpufleet change list` names the run, `gpufleet change undo RUN` removes it", r'ontainer name "?/?[^"\s]{1,200}"? is already in use'),
    signature("rt.disk", ("o space left on device", "ENOSPC", "is the disk full"), "make room where images and weights are kept: `docker system df`, `df -h`", r"[Nn]o space left on device|ENOSPC: |is the disk full"),
    signature("rt.pull_rate", ("toomanyrequests", "pull rate limit"), "the registry counts pulls: log in there, use a mirror, or copy the image from a host that has it", kind=_TRANSIENT),
    signature("rt.manifest", ("manifest unknown", "manifest for ", "no matching manifest for ", "No such image", "pull access denied", "repository does not exist"), "check engine.image: the registry has no such tag for this machine's architecture, or wants a login", r"manifest unknown|manifest for \S{1,300} not found|no matching manifest for|No such image|pull access denied|repository does not exist"),
    signature("rt.oomkilled", ("OOMKilled", "Killed process ", "oom-kill:"), "the host's or container's memory ran out (not the GPU's): raise limits.memory where one is set, else free host memory, or lower kv_offload", r'"OOMKilled": ?true|Killed process \d{1,10} .{0,100}(?:python|VLLM|vllm)|oom-kill:constraint='),
    signature("rt.registry_tls", ("server gave HTTP response to HTTPS client", "certificate signed by unknown authority", "failed to verify certificate"), "declare the registry as insecure on the host, or install its certificate"),
    signature("rt.registry", ("dial tcp", "net/http: request canceled", "net/http: TLS handshake timeout"), "the host cannot reach the registry: check its network and proxy, or copy the image from a host that has it", r"dial tcp[^\n]{0,300}(?:connection refused|no such host|i/o timeout|server misbehaving|no route)|net/http: (?:request canceled|TLS handshake timeout)", kind=_TRANSIENT),
    signature("rt.entrypoint", ("executable file not found in $PATH", "no such file or directory: unknown", "exec format error", "executable file `"), "engine.image is no vLLM image, or was built for another architecture", r"executable file (?:`[^`]{1,100}` )?not found in \$PATH|no such file or directory: unknown|exec format error"),
    signature("rt.limit", ("Minimum memory limit allowed", "ange of CPUs is from"), "correct the pool's limits"),
    signature("rt.memlock", ("error setting rlimit", "RLIMIT_MEMLOCK"), "the container runtime may not raise the limit on locked memory here (it runs in a container itself, or without CAP_SYS_RESOURCE): set limits.memlock: inherit", r"error setting rlimit type 8: operation not permitted|setrlimit[^\n]{0,20}RLIMIT_MEMLOCK[^\n]{0,20}: [Oo]peration not permitted"),
    signature("rt.mount", ("bind source path does not exist", "invalid mount config"), "the directory that the pool mounts is not on this host: check `weights`"),
)  # fmt: skip
