//! The proxies beside ours, each with the same task: two listeners, one backend, the same fields added.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::rig::Rig;

/// Which proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    Nginx,
    Haproxy,
    Envoy,
    Traefik,
    /// Only where responses are kept.
    Varnish,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Ours, Self::Nginx, Self::Haproxy, Self::Envoy, Self::Traefik];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "telaio",
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Envoy => "Envoy",
            Self::Traefik => "Traefik",
            Self::Varnish => "Varnish",
        }
    }

    /// Whether we are held against it.
    pub(crate) fn is_bar(self) -> bool {
        matches!(self, Self::Nginx | Self::Haproxy)
    }

    /// Where it is, if it is installed.
    pub(crate) fn program(self) -> Option<PathBuf> {
        let peers = std::env::var_os("TELAIO_BENCH_PEERS").map(PathBuf::from);
        match self {
            Self::Ours => Some(crate::ours::PROGRAM.into()),
            Self::Nginx => Some("nginx".into()),
            Self::Haproxy => Some("haproxy".into()),
            Self::Varnish => Some("varnishd".into()),
            Self::Envoy => Some(peers?.join("envoy")).filter(|path| path.exists()),
            Self::Traefik => Some(peers?.join("traefik")).filter(|path| path.exists()),
        }
    }

    /// Its version, if it is installed and says so.
    pub(crate) fn version(self) -> Option<String> {
        let flag = match self {
            Self::Ours | Self::Envoy => "--version",
            Self::Nginx | Self::Haproxy => "-v",
            Self::Traefik => "version",
            Self::Varnish => "-V",
        };
        let output = std::process::Command::new(self.program()?).arg(flag).output().ok()?;
        let said = [output.stdout, output.stderr].concat();
        version_in(&String::from_utf8_lossy(&said)).map(str::to_owned)
    }

    /// How it is run.
    pub(crate) fn args(self, rig: &Rig, ports: (u16, u16), cache: bool) -> Result<Vec<String>> {
        let backend = rig.backend_port;
        Ok(match self {
            Self::Ours => bail!("ours is run in its own way"),
            Self::Nginx => {
                let name = if cache { "nginx-cache" } else { "nginx" };
                let text = nginx_conf(name, &nginx_proxy(ports, backend, cache));
                vec!["-c".to_owned(), rig.write(&format!("{name}.conf"), &text)?]
            }
            Self::Haproxy => {
                vec!["-f".to_owned(), rig.write("haproxy.cfg", &haproxy(ports, backend))?]
            }
            Self::Envoy => {
                let file = rig.write("envoy.yaml", &envoy(ports, backend))?;
                let own = ["-c", &file, "--concurrency", "1", "-l", "off", "--disable-hot-restart"];
                own.map(str::to_owned).to_vec()
            }
            Self::Traefik => {
                rig.write("dynamic.yaml", &traefik_dynamic(backend))?;
                vec![format!("--configFile={}", rig.write("traefik.yaml", &traefik(ports))?)]
            }
            Self::Varnish => varnish(ports.0, backend, &rig.path("varnish").display().to_string()),
        })
    }
}

/// The first number with points in it.
fn version_in(said: &str) -> Option<&str> {
    let is_version = |word: &&str| {
        let first = |c: char| c.is_ascii_digit();
        word.starts_with(first) && word.contains('.')
    };
    said.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).find(is_version)
}

pub(crate) fn nginx_conf(name: &str, servers: &str) -> String {
    format!(
        "daemon off; master_process off; pid DIR/{name}.pid; error_log stderr crit; worker_processes 1;
events {{ worker_connections 15000; }}
http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600s; sendfile on; tcp_nopush on;
client_body_temp_path DIR/{name}-1; proxy_temp_path DIR/{name}-2; fastcgi_temp_path DIR/{name}-3; uwsgi_temp_path DIR/{name}-4; scgi_temp_path DIR/{name}-5;
{servers} }}
"
    )
}

fn nginx_proxy((http, https): (u16, u16), backend: u16, cache: bool) -> String {
    let (store, use_it) = if cache {
        ("proxy_cache_path DIR/nginx-kept keys_zone=c:10m;", "proxy_cache c;")
    } else {
        ("", "")
    };
    format!(
        "{store} upstream b {{ server 127.0.0.1:{backend}; keepalive 512; keepalive_requests 1000000000; }}
server {{ listen 127.0.0.1:{http} backlog=4096; listen 127.0.0.1:{https} ssl http2 backlog=4096;
ssl_certificate DIR/cert.pem; ssl_certificate_key DIR/key.pem;
location / {{ {use_it} proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection ''; proxy_set_header Host $http_host;
proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Forwarded-Proto $scheme;
proxy_set_header X-Forwarded-Host $http_host; proxy_set_header X-Forwarded-Port $server_port; proxy_set_header X-Request-Id $request_id; }} }}"
    )
}

fn haproxy((http, https): (u16, u16), backend: u16) -> String {
    format!(
        "global
  nbthread 1
  maxconn 9800
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 60s
  http-reuse always
frontend f
  bind 127.0.0.1:{http} backlog 4096
  bind 127.0.0.1:{https} ssl crt DIR/both.pem alpn h2,http/1.1 backlog 4096
  option forwardfor
  http-request set-header X-Real-IP %[src]
  http-request set-header X-Forwarded-Proto http
  http-request set-header X-Forwarded-Host %[req.hdr(host)]
  http-request set-header X-Forwarded-Port %[dst_port]
  unique-id-format %{{+X}}o\\ %ci:%cp_%fi:%fp_%Ts_%rt:%pid
  unique-id-header X-Request-Id
  default_backend b
backend b
  server s 127.0.0.1:{backend}
"
    )
}

fn varnish(http: u16, backend: u16, directory: &str) -> Vec<String> {
    let (listen, backend) = (format!("127.0.0.1:{http}"), format!("127.0.0.1:{backend}"));
    let args =
        ["-F", "-j", "none", "-a", &listen, "-b", &backend, "-s", "malloc,64m", "-n", directory];
    let one = ["-p", "thread_pools=1", "-p", "thread_pool_min=50"];
    args.into_iter().chain(one).map(str::to_owned).collect()
}

fn envoy((http, https): (u16, u16), backend: u16) -> String {
    let chain = |tls: &str| {
        format!(
            "    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: i
          codec_type: AUTO
          use_remote_address: true
          route_config:
            virtual_hosts:
            - {{name: a, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: b}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
{tls}"
        )
    };
    let tls = "      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: [h2, http/1.1]
            tls_certificates:
            - {certificate_chain: {filename: DIR/cert.pem}, private_key: {filename: DIR/key.pem}}
";
    format!(
        "static_resources:
  listeners:
  - name: h
    address: {{socket_address: {{address: 127.0.0.1, port_value: {http}}}}}
{}
  - name: s
    address: {{socket_address: {{address: 127.0.0.1, port_value: {https}}}}}
{}
  clusters:
  - name: b
    type: STATIC
    load_assignment:
      cluster_name: b
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {backend}}}}}}}}}]}}]
",
        chain(""),
        chain(tls)
    )
}

fn traefik((http, https): (u16, u16)) -> String {
    format!(
        "entryPoints:
  h: {{address: '127.0.0.1:{http}'}}
  s: {{address: '127.0.0.1:{https}'}}
log: {{level: ERROR}}
global: {{checkNewVersion: false, sendAnonymousUsage: false}}
providers: {{file: {{filename: DIR/dynamic.yaml}}}}
"
    )
}

fn traefik_dynamic(backend: u16) -> String {
    format!(
        "http:
  routers:
    h: {{rule: 'PathPrefix(`/`)', entryPoints: [h], service: b}}
    s: {{rule: 'PathPrefix(`/`)', entryPoints: [s], service: b, tls: {{}}}}
  services:
    b: {{loadBalancer: {{servers: [{{url: 'http://127.0.0.1:{backend}'}}]}}}}
tls:
  stores: {{default: {{defaultCertificate: {{certFile: DIR/cert.pem, keyFile: DIR/key.pem}}}}}}
"
    )
}
