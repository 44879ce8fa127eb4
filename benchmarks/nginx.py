"""nginx as the yardstick of what a proxy can cost: Debian's build, one worker, nothing buffered, kept-alive upstream.

Found on the machine or unpacked from Debian's package into the cache folder: that needs no root, installs nothing and
starts no service. Where neither works the contender is left out, and the run says so.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
from pathlib import Path

from benchmarks.build import Unavailable, apt, cache_folder

CONFIG = """\
{user}worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 100000000;
    client_max_body_size 64m;
    client_body_buffer_size 128k;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream provider {{
        server 127.0.0.1:{upstream};
        keepalive 512;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://provider;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


def _works(binary: str) -> bool:
    try:
        return subprocess.run((binary, "-v"), capture_output=True, timeout=10).returncode == 0
    except OSError:
        return False


def find_nginx() -> str:
    """The path of an nginx that runs. Raises Unavailable."""
    unpacked = cache_folder() / "nginx"
    own = unpacked / "usr" / "sbin" / "nginx"
    for candidate in (shutil.which("nginx"), "/usr/sbin/nginx", str(own)):
        if candidate and _works(candidate):
            return candidate
    unpacked.mkdir(parents=True, exist_ok=True)
    problem = apt("download", "nginx", cwd=unpacked)
    if problem is None:
        for package in unpacked.glob("nginx_*.deb"):
            subprocess.run(("dpkg", "-x", str(package), str(unpacked)), capture_output=True, timeout=60)
            package.unlink()
        if _works(str(own)):
            return str(own)
        problem = "the unpacked one does not run (a shared library is missing?)"
    raise Unavailable(f"no nginx: {problem}; install it (Debian: apt-get install nginx-light)")


def version(binary: str) -> str:
    said = subprocess.run((binary, "-v"), capture_output=True, text=True, timeout=10).stderr
    return said.strip().rpartition("nginx/")[2]


def command(binary: str, *, folder: Path, port: int, upstream: int) -> tuple[str, ...]:
    """Writes the configuration into `folder` and returns the command that serves it."""
    user = ""
    if os.getuid() == 0:  # else the worker becomes nobody, who may not write into our folder
        user = f"user {pwd.getpwuid(0).pw_name} {grp.getgrgid(0).gr_name};\n"
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(user=user, folder=folder, port=port, upstream=upstream))
    return (binary, "-p", str(folder), "-e", "stderr", "-c", str(config))
