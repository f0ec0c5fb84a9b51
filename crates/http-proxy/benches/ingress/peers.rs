//! The proxies, each with the same task: two listeners, one backend, the same fields added.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The backend's port; a proxy's http port is its own base, https the next.
pub(crate) const BACKEND_PORT: u16 = 29_000;

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

    pub(crate) fn port(self) -> u16 {
        29_010 + 10 * self as u16
    }

    fn program(self) -> Option<PathBuf> {
        let peers = std::env::var_os("TELAIO_BENCH_PEERS").map(PathBuf::from);
        match self {
            Self::Ours => std::env::current_exe().ok(),
            Self::Nginx => Some("nginx".into()),
            Self::Haproxy => Some("haproxy".into()),
            Self::Varnish => Some("varnishd".into()),
            Self::Envoy => Some(peers?.join("envoy")).filter(|path| path.exists()),
            Self::Traefik => Some(peers?.join("traefik")).filter(|path| path.exists()),
        }
    }
}

/// A process that ends with us.
pub(crate) struct Running {
    child: Child,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Files of a run, removed afterwards.
pub(crate) struct Rig {
    directory: PathBuf,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Rig {
    pub(crate) fn new() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("telaio-bench-{}", std::process::id()));
        fs::create_dir_all(directory.join("www"))?;
        let body: Vec<u8> = (0..65_536_u32).map(|number| (number % 251) as u8).collect();
        fs::write(directory.join("www/64k"), body)?;
        fs::write(directory.join("www/cached"), vec![b'c'; 1024])?;
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        fs::write(directory.join("cert.pem"), made.cert.pem())?;
        fs::write(directory.join("key.pem"), made.signing_key.serialize_pem())?;
        let both = format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem());
        fs::write(directory.join("both.pem"), both)?;
        Ok(Self { directory })
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> Result<String> {
        let text = text.replace("DIR", &self.directory.display().to_string());
        fs::write(self.directory.join(name), text)?;
        Ok(self.path(name))
    }

    /// The backend, on the load's core.
    pub(crate) fn backend(&self) -> Result<Running> {
        let text = nginx_conf(
            "backend",
            &format!(
                "server {{ listen 127.0.0.1:{BACKEND_PORT}; location = /small {{ return 200 'hello, this is a small answer\\n'; }}
                 location = /cached {{ root DIR/www; add_header Cache-Control 'max-age=3600'; }} location / {{ root DIR/www; }} }}"
            ),
        );
        let file = self.write("backend.conf", &text)?;
        self.start("1", Path::new("nginx"), &["-c", &file], BACKEND_PORT)
    }

    /// A proxy on its core; `None` if it is not installed.
    pub(crate) fn proxy(&self, kind: Kind, routes: u32, cache: bool) -> Result<Option<Running>> {
        let Some(program) = kind.program() else { return Ok(None) };
        let (http, https) = (kind.port(), kind.port() + 1);
        let args: Vec<String> = match kind {
            Kind::Ours => {
                let mut args = vec!["serve".to_owned()];
                args.extend([http, https, BACKEND_PORT].map(|port| format!("127.0.0.1:{port}")));
                args.push(routes.to_string());
                args.push(if cache { "cache" } else { "plain" }.to_owned());
                args.extend([self.path("cert.pem"), self.path("key.pem")]);
                args
            }
            Kind::Nginx => {
                let file = self
                    .write("nginx.conf", &nginx_conf("proxy", &nginx_proxy(http, https, cache)))?;
                vec!["-c".to_owned(), file]
            }
            Kind::Haproxy => {
                vec!["-f".to_owned(), self.write("haproxy.cfg", &haproxy(http, https))?]
            }
            Kind::Envoy => {
                let file = self.write("envoy.yaml", &envoy(http, https))?;
                ["-c", &file, "--concurrency", "1", "-l", "off", "--base-id", "77"]
                    .map(str::to_owned)
                    .to_vec()
            }
            Kind::Traefik => {
                self.write("dynamic.yaml", &traefik_dynamic())?;
                vec![format!("--configFile={}", self.write("traefik.yaml", &traefik(http, https))?)]
            }
            Kind::Varnish => varnish(http, &self.path("varnish")),
        };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.start("0", &program, &args, http).map(Some)
    }

    fn start(&self, core: &str, program: &Path, args: &[&str], port: u16) -> Result<Running> {
        let log = fs::File::create(self.directory.join(format!("{port}.log")))?;
        let mut command = Command::new("taskset");
        command.args(["-c", core]).arg(program).args(args);
        let child = command.env("GOMAXPROCS", "1").stdout(Stdio::null()).stderr(log).spawn();
        let mut running = Running { child: child.context("taskset is missing")? };
        let end = Instant::now() + Duration::from_secs(15);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = running.child.try_wait()? {
                let log = fs::read_to_string(self.directory.join(format!("{port}.log")))?;
                bail!("{} ended with {status}: {log}", program.display());
            }
            if Instant::now() > end {
                bail!("{} does not listen on {port}", program.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(running)
    }
}

fn nginx_conf(name: &str, servers: &str) -> String {
    format!(
        "daemon off; master_process off; pid DIR/{name}.pid; error_log stderr crit; worker_processes 1;
events {{ worker_connections 15000; }}
http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600s;
client_body_temp_path DIR/{name}-1; proxy_temp_path DIR/{name}-2; fastcgi_temp_path DIR/{name}-3; uwsgi_temp_path DIR/{name}-4; scgi_temp_path DIR/{name}-5;
{servers} }}
"
    )
}

fn nginx_proxy(http: u16, https: u16, cache: bool) -> String {
    let (store, use_it) = if cache {
        ("proxy_cache_path DIR/nginx-cache keys_zone=c:10m;", "proxy_cache c;")
    } else {
        ("", "")
    };
    format!(
        "{store} upstream b {{ server 127.0.0.1:{BACKEND_PORT}; keepalive 512; keepalive_requests 1000000000; }}
server {{ listen 127.0.0.1:{http} backlog=4096; listen 127.0.0.1:{https} ssl http2 backlog=4096;
ssl_certificate DIR/cert.pem; ssl_certificate_key DIR/key.pem;
location / {{ {use_it} proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection ''; proxy_set_header Host $http_host;
proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Forwarded-Proto $scheme;
proxy_set_header X-Forwarded-Host $http_host; proxy_set_header X-Forwarded-Port $server_port; proxy_set_header X-Request-Id $request_id; }} }}"
    )
}

fn haproxy(http: u16, https: u16) -> String {
    format!(
        "global
  nbthread 1
  maxconn 9000
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
  server s 127.0.0.1:{BACKEND_PORT}
"
    )
}

fn varnish(http: u16, directory: &str) -> Vec<String> {
    let (listen, backend) = (format!("127.0.0.1:{http}"), format!("127.0.0.1:{BACKEND_PORT}"));
    let args =
        ["-F", "-j", "none", "-a", &listen, "-b", &backend, "-s", "malloc,64m", "-n", directory];
    let one = ["-p", "thread_pools=1", "-p", "thread_pool_min=50"];
    args.into_iter().chain(one).map(str::to_owned).collect()
}

fn envoy(http: u16, https: u16) -> String {
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
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {BACKEND_PORT}}}}}}}}}]}}]
",
        chain(""),
        chain(tls)
    )
}

fn traefik(http: u16, https: u16) -> String {
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

fn traefik_dynamic() -> String {
    format!(
        "http:
  routers:
    h: {{rule: 'PathPrefix(`/`)', entryPoints: [h], service: b}}
    s: {{rule: 'PathPrefix(`/`)', entryPoints: [s], service: b, tls: {{}}}}
  services:
    b: {{loadBalancer: {{servers: [{{url: 'http://127.0.0.1:{BACKEND_PORT}'}}]}}}}
tls:
  stores: {{default: {{defaultCertificate: {{certFile: DIR/cert.pem, keyFile: DIR/key.pem}}}}}}
"
    )
}
