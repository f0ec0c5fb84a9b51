//! Our proxy: the binary, and what it is to serve.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::rig::Rig;

/// What people run.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_telaio");

/// How it is run.
pub(crate) fn args(source: &str, state: &Path, (http, https): (u16, u16)) -> Vec<String> {
    [
        "run".to_owned(),
        "--planes=ingress".to_owned(),
        "--node=bench".to_owned(),
        format!("--source={source}"),
        format!("--http-listen=127.0.0.1:{http}"),
        format!("--https-listen=127.0.0.1:{https}"),
        "--default-tls-secret=bench/certificate".to_owned(),
        "--classless-ingresses=true".to_owned(),
        format!("--state-dir={}", state.display()),
        "--admin-listen=127.0.0.1:0".to_owned(),
        "--metrics-bind-address=127.0.0.1:0".to_owned(),
        "--healthz-bind-address=127.0.0.1:0".to_owned(),
        "--log-level=warn".to_owned(),
    ]
    .to_vec()
}

/// A service of one endpoint, which is the backend.
pub(crate) fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: bench}}\n\
         spec: {{clusterIP: None, ports: [{{name: http, port: 80, targetPort: {port}}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-1, namespace: bench, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: {port}}}]\nendpoints: [{{addresses: [127.0.0.1]}}]\n---\n"
    )
}

/// An Ingress of one host, or of any; `more` stands in its metadata.
pub(crate) fn ingress(name: &str, host: Option<&str>, service: &str, more: &str) -> String {
    let host = host.map_or(String::new(), |host| format!("host: {host}, "));
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, namespace: bench{more}}}\n\
         spec:\n  rules:\n  - {{{host}http: {{paths: [{{path: /, pathType: Prefix, \
         backend: {{service: {{name: {service}, port: {{name: http}}}}}}}}]}}}}\n---\n"
    )
}

/// Writes what is served: an Ingress for any host and so many for hosts of their own, each with a
/// service of its own.
pub(crate) fn write_manifests(rig: &Rig, routes: usize, cache: bool) -> Result<PathBuf> {
    let name = format!("manifests-{routes}-{}", if cache { "cache" } else { "plain" });
    let directory = rig.path(&name);
    if directory.exists() {
        return Ok(directory);
    }
    fs::create_dir_all(&directory)?;
    let more = if cache { ", annotations: {telaio.dev/cache: \"true\"}" } else { "" };
    let all = ingress("any", None, "web", more) + &service("web", rig.backend_port);
    fs::write(directory.join("any.yaml"), all + &certificate(rig)?)?;
    for number in 0..routes {
        let (name, host) = (format!("web-{number}"), format!("host-{number}.example.com"));
        let both = ingress(&name, Some(&host), &name, more) + &service(&name, rig.backend_port);
        fs::write(directory.join(format!("{name}.yaml")), both)?;
    }
    Ok(directory)
}

fn certificate(rig: &Rig) -> Result<String> {
    let indented = |name: &str| -> Result<String> {
        Ok(fs::read_to_string(rig.path(name))?.trim().replace('\n', "\n    "))
    };
    Ok(format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: certificate, namespace: bench}}\ntype: kubernetes.io/tls\n\
         stringData:\n  tls.crt: |\n    {}\n  tls.key: |\n    {}\n---\n",
        indented("cert.pem")?,
        indented("key.pem")?
    ))
}
