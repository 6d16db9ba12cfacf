//! `--explain`: the table that choices are made from.

use super::measure::BenchError;
use super::sizes;
use super::table::time;
use ringway::Communicator;
use ringway_collectives::schedule::Collective;
use std::io::{ErrorKind, Write};

/// Prints on rank 0 what each size would be run by, and what the others cost.
pub(super) fn explain(
    comm: &Communicator,
    collective: Collective,
    sizes_list: &[u64],
) -> Result<(), BenchError> {
    if comm.rank() != 0 {
        return Ok(());
    }
    let mut text = String::from("#       size  chosen            why\n");
    for &bytes in sizes_list {
        let told = comm.explain(collective, bytes);
        let choice = told.choice;
        text += &format!("{bytes:>12}  {:<16}  {}\n", choice.algorithm.to_string(), choice.why);
        for priced in told.prices {
            let mark = if priced.algorithm == choice.algorithm { "*" } else { " " };
            let not = if priced.permitted { "" } else { "  (not asked for)" };
            let slice = sizes::show(priced.estimate.slice_bytes);
            text += &format!(
                "#            {mark} {:<16} {:>12} us, slices of {slice}, {} in flight{not}\n",
                priced.algorithm.to_string(),
                time(priced.estimate.time_us),
                priced.estimate.slices_in_flight,
            );
        }
    }
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // Nobody reads any more (`| head`): the printer of the rows finds out too, and ends the benchmark on all ranks.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
