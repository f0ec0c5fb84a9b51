//! `telaio service`: the agent as a service of Windows.
//!
//! `install` registers this program with the options of `telaio run`; Windows then starts it with itself, and
//! again if it fails. Started so, it reports to the service manager, logs to a file, and takes "stop" and
//! "parameters changed" where a console would send Ctrl-C or another system a signal.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::Context;
use telaio_source::SourceSpec;
use windows_service::service::{
    ServiceAccess, ServiceAction as Recovery, ServiceActionType, ServiceControl,
    ServiceControlAccept, ServiceErrorControl, ServiceExitCode, ServiceFailureActions,
    ServiceFailureResetPeriod, ServiceInfo, ServiceStartType, ServiceState, ServiceStatus,
    ServiceType,
};
use windows_service::service_control_handler::{
    self, ServiceControlHandlerResult, ServiceStatusHandle,
};
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};
use windows_service::{define_windows_service, service_dispatcher};

use crate::cli::{Command, RunArgs, ServiceAction, ServiceArgs};
use crate::exit::CommandError;
use crate::settings::{Settings, SettingsError};
use crate::shutdown::{Request, asked};

/// How people see it.
const DISPLAY_NAME: &str = "Telaio node agent";
const DESCRIPTION: &str = "Serves the cluster's services on this node by HNS load balancers";
/// The log's name in the state directory, where no other is named.
const LOG_FILE: &str = "telaio.log";
/// How long starting and ending may take.
const PENDING_TIME_MAX: Duration = Duration::from_secs(30);
/// How often a service that ends is looked at.
const PAUSE: Duration = Duration::from_millis(200);
/// How soon Windows starts one again that failed, and how long one has to run to count as well.
const RESTART_DELAY: Duration = Duration::from_secs(5);
const WELL_AFTER: Duration = Duration::from_hours(1);
/// Windows' number for a program that says itself what went wrong.
const NOT_INSTALLED: i32 = 1060;

/// Does what was asked.
pub(crate) fn service(args: &ServiceArgs) -> Result<(), CommandError> {
    match &args.action {
        ServiceAction::Install { options } => install(&args.name, options),
        ServiceAction::Uninstall => uninstall(&args.name),
        ServiceAction::Work { options } => work(&args.name, options),
    }
}

/// What Windows starts: this program, with these arguments before the options of `telaio run`.
fn launch_arguments(name: &str, options: &[String]) -> Vec<OsString> {
    let ours = ["service", "--name", name, "work"].into_iter();
    ours.chain(options.iter().map(String::as_str)).map(OsString::from).collect()
}

/// Reads options of `telaio run`.
fn run_args(options: &[String]) -> Result<(Settings, Box<RunArgs>), CommandError> {
    let args = ["telaio", "run"].into_iter().chain(options.iter().map(String::as_str));
    let (settings, cli) =
        Settings::load(args.map(OsString::from).collect()).map_err(|error| match error {
            SettingsError::CommandLine(error) => CommandError::bad_input(error),
            error @ SettingsError::File(_) => CommandError::BadInput(error.into()),
        })?;
    match cli.command {
        Command::Run(args) => Ok((settings, args)),
        _ => Err(CommandError::bad_input("a service runs the agent, and nothing else")),
    }
}

/// A service starts in Windows' own directory: there, a relative path leads elsewhere than meant.
fn check_paths(args: &RunArgs) -> Result<(), CommandError> {
    let source = match args.source.spec()? {
        SourceSpec::Dir(path) | SourceSpec::Kube(Some(path)) => Some(path),
        SourceSpec::Kube(None) | SourceSpec::Brain(_) => None,
    };
    let (config, log) = (args.config.config.as_deref(), args.log.log_file.as_deref());
    let tls = [&args.tls.cert, &args.tls.key, &args.tls.ca];
    let named = [source.as_deref(), config, log, Some(&args.state.state_dir)];
    let all = named.into_iter().chain(tls.map(Option::as_deref)).flatten();
    match all.into_iter().find(|path: &&Path| !path.is_absolute()) {
        None => Ok(()),
        Some(path) => Err(CommandError::bad_input(format!(
            "{} is a relative path, and services start in Windows' own directory; name it in full",
            path.display()
        ))),
    }
}

fn manager(access: ServiceManagerAccess) -> Result<ServiceManager, CommandError> {
    let opened = ServiceManager::local_computer(None::<&OsStr>, access);
    Ok(opened.context("cannot reach the service manager; run as an administrator")?)
}

fn install(name: &str, options: &[String]) -> Result<(), CommandError> {
    let (_, args) = run_args(options)?;
    check_paths(&args)?;
    let info = ServiceInfo {
        name: name.into(),
        display_name: DISPLAY_NAME.into(),
        service_type: ServiceType::OWN_PROCESS,
        start_type: ServiceStartType::AutoStart,
        error_control: ServiceErrorControl::Normal,
        executable_path: std::env::current_exe().context("where is this program?")?,
        launch_arguments: launch_arguments(name, options),
        // Not of HNS: who restarts that would have to stop us first.
        dependencies: Vec::new(),
        // LocalSystem, who may use HNS.
        account_name: None,
        account_password: None,
    };
    let manager = manager(ServiceManagerAccess::CONNECT | ServiceManagerAccess::CREATE_SERVICE)?;
    let access = ServiceAccess::CHANGE_CONFIG | ServiceAccess::START;
    let made = manager.create_service(&info, access);
    let made = made.with_context(|| format!("cannot install the service {name}"))?;
    made.set_description(DESCRIPTION).context("cannot describe the service")?;
    let again = Recovery { action_type: ServiceActionType::Restart, delay: RESTART_DELAY };
    let recovery = ServiceFailureActions {
        reset_period: ServiceFailureResetPeriod::After(WELL_AFTER),
        reboot_msg: None,
        command: None,
        actions: Some(vec![again.clone(), again.clone(), again]),
    };
    if let Err(error) = made.update_failure_actions(recovery) {
        eprintln!("telaio: Windows will not start the service again if it fails: {error}");
    }
    say(&format!("installed the service {name}; start it by `sc start {name}`"))
}

fn uninstall(name: &str) -> Result<(), CommandError> {
    let manager = manager(ServiceManagerAccess::CONNECT)?;
    let access = ServiceAccess::QUERY_STATUS | ServiceAccess::STOP | ServiceAccess::DELETE;
    let service = match manager.open_service(name, access) {
        Ok(service) => service,
        Err(windows_service::Error::Winapi(error))
            if error.raw_os_error() == Some(NOT_INSTALLED) =>
        {
            return say(&format!("there is no service {name}"));
        }
        Err(error) => {
            return Err(anyhow::Error::from(error)
                .context(format!("cannot open the service {name}"))
                .into());
        }
    };
    let state = || -> Result<ServiceState, CommandError> {
        Ok(service.query_status().context("cannot ask for the service's state")?.current_state)
    };
    if !matches!(state()?, ServiceState::Stopped | ServiceState::StopPending) {
        service.stop().with_context(|| format!("cannot stop the service {name}"))?;
    }
    let deadline = Instant::now() + PENDING_TIME_MAX;
    while state()? != ServiceState::Stopped {
        if Instant::now() >= deadline {
            return Err(CommandError::failed(format!("the service {name} does not stop")));
        }
        std::thread::sleep(PAUSE);
    }
    service.delete().with_context(|| format!("cannot remove the service {name}"))?;
    say(&format!("removed the service {name}; what it programmed stays: see `telaio cleanup`"))
}

fn say(text: &str) -> Result<(), CommandError> {
    Ok(writeln!(std::io::stdout(), "{text}").context("cannot print")?)
}

/// What the service's own thread has to know; Windows passes it nothing.
struct Work {
    name: String,
    options: Vec<String>,
}

static WORK: OnceLock<Work> = OnceLock::new();

define_windows_service!(windows_service_main, service_main);

/// Hands this program over to the service manager until the service has ended.
fn work(name: &str, options: &[String]) -> Result<(), CommandError> {
    let work = Work { name: name.to_owned(), options: options.to_vec() };
    // Set once: this is done once in a process.
    let _ = WORK.set(work);
    let served = service_dispatcher::start(name, windows_service_main);
    Ok(served.context("only Windows starts this; install the service and start that")?)
}

fn service_main(_: Vec<OsString>) {
    let Some(work) = WORK.get() else { return };
    let handler = |control| match control {
        ServiceControl::Stop => ask(Request::End("the service is stopped")),
        ServiceControl::Shutdown => ask(Request::End("Windows shuts down")),
        ServiceControl::ParamChange => ask(Request::Reload("the service's parameters changed")),
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    };
    // Without a handle there is nobody to tell.
    let Ok(status) = service_control_handler::register(&work.name, handler) else { return };
    report(status, ServiceState::StartPending, ServiceExitCode::NO_ERROR);
    let outcome = serve(&work.options, || {
        report(status, ServiceState::Running, ServiceExitCode::NO_ERROR);
    });
    let code = match outcome {
        Ok(()) => ServiceExitCode::NO_ERROR,
        Err(error) => {
            tracing::error!(%error, "the service ends");
            ServiceExitCode::ServiceSpecific(error.code().into())
        }
    };
    report(status, ServiceState::Stopped, code);
}

fn ask(request: Request) -> ServiceControlHandlerResult {
    asked::put(request);
    ServiceControlHandlerResult::NoError
}

fn serve(options: &[String], started: impl FnOnce()) -> Result<(), CommandError> {
    let (settings, mut args) = run_args(options)?;
    if args.log.log_file.is_none() {
        args.log.log_file = Some(args.state.state_dir.join(LOG_FILE));
    }
    started();
    super::run(&args, settings)
}

fn report(handle: ServiceStatusHandle, state: ServiceState, exit_code: ServiceExitCode) {
    let is_running = state == ServiceState::Running;
    let takes = ServiceControlAccept::STOP
        | ServiceControlAccept::SHUTDOWN
        | ServiceControlAccept::PARAM_CHANGE;
    let status = ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state: state,
        controls_accepted: if is_running { takes } else { ServiceControlAccept::empty() },
        exit_code,
        checkpoint: 0,
        wait_hint: if is_running { Duration::ZERO } else { PENDING_TIME_MAX },
        process_id: None,
    };
    if let Err(error) = handle.set_service_status(status) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
