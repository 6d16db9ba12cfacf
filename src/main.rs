//! The `ringway` program: a local launcher, a coordination service, and a look at this machine.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
