//! The CNI plugin; see `telaio_pod_network::cni`.

use std::process::ExitCode;

fn main() -> ExitCode {
    telaio_pod_network::cni::main()
}
