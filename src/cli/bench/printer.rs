//! Prints what a benchmark measured: a head, a row per size as it comes, and a foot; as a table, CSV or JSON.

use super::measure::{BenchError, agree};
use ringway::{CollectiveError, Communicator};
use serde::Serialize;
use std::io::{self, ErrorKind, Stdout, Write, stdout};

/// How rows are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// The table of nccl-tests, for people.
    Table,
    /// Comma-separated, a header line first.
    Csv,
    /// One JSON object with the ranks and the rows.
    Json,
}

/// One measured size, as it is printed.
pub(super) trait Line: Serialize {
    /// What the figures are, said before the heads of the columns.
    const NOTE: &'static str;
    /// The heads of the table's columns, and their units.
    const HEAD: [&'static str; 2];
    /// The names of the columns.
    const CSV_HEAD: &'static str;
    /// What is counted as wrong.
    const CHECKED: &'static str;

    /// Its line of the table.
    fn table(&self) -> String;
    /// Its line of the CSV.
    fn csv(&self) -> String;
    /// How much was not what it must be; `None` when checking is off.
    fn wrong(&self) -> Option<u64>;
    /// What stands below the table besides.
    fn foot(_rows: &[Self]) -> Option<String>
    where
        Self: Sized,
    {
        None
    }
}

/// What stands for [`Line::wrong`] in a row.
pub(super) fn wrong(count: Option<u64>) -> String {
    count.map_or("N/A".to_owned(), |count| count.to_string())
}

/// Who takes part and how each is reached, printed before the rows.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RankLine {
    pub rank: u32,
    pub host: String,
    pub pid: u32,
    pub why: String,
}

/// Collects rows and prints them as they come (JSON: at the end).
pub(super) struct Printer<W: Write, R: Line> {
    out: W,
    format: Format,
    title: String,
    ranks: Vec<RankLine>,
    rows: Vec<R>,
}

impl<W: Write, R: Line> Printer<W, R> {
    /// Prints the head.
    ///
    /// # Errors
    /// When the output is closed.
    pub(super) fn start(mut out: W, format: Format, title: String, ranks: Vec<RankLine>) -> io::Result<Self> {
        match format {
            Format::Table => {
                writeln!(out, "# {title}")?;
                for r in &ranks {
                    writeln!(out, "#   rank {:>3} on {} pid {}: {}", r.rank, r.host, r.pid, r.why)?;
                }
                writeln!(out, "# {}", R::NOTE)?;
                R::HEAD.iter().try_for_each(|line| writeln!(out, "{line}"))?;
            }
            Format::Csv => writeln!(out, "{}", R::CSV_HEAD)?,
            Format::Json => {}
        }
        out.flush()?;
        Ok(Printer { out, format, title, ranks, rows: Vec::new() })
    }

    /// Prints one row.
    ///
    /// # Errors
    /// When the output is closed.
    pub(super) fn row(&mut self, row: R) -> io::Result<()> {
        match self.format {
            Format::Table => writeln!(self.out, "{}", row.table())?,
            Format::Csv => writeln!(self.out, "{}", row.csv())?,
            Format::Json => {}
        }
        self.out.flush()?;
        self.rows.push(row);
        Ok(())
    }

    /// Prints the foot.
    ///
    /// # Errors
    /// When the output is closed.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let wrong: u64 = self.rows.iter().filter_map(Line::wrong).sum();
        let checked = self.rows.iter().all(|row| row.wrong().is_some());
        match self.format {
            Format::Table => {
                let verdict = match (checked, wrong) {
                    (false, _) => "not checked (-c 0)".to_owned(),
                    (true, 0) => "0 OK".to_owned(),
                    (true, n) => format!("{n} FAILED"),
                };
                writeln!(self.out, "# {} : {verdict}", R::CHECKED)?;
                if let Some(foot) = R::foot(&self.rows) {
                    writeln!(self.out, "# {foot}")?;
                }
            }
            Format::Csv => {}
            Format::Json => {
                let whole = serde_json::json!({ "title": self.title, "ranks": self.ranks, "rows": self.rows, "wrong": wrong });
                writeln!(self.out, "{whole:#}")?;
            }
        }
        self.out.flush()
    }
}

/// What all ranks of a benchmark have of the printer on rank 0: they go on while it can print.
pub(super) struct Printout<'a, R: Line> {
    comm: &'a Communicator,
    /// On rank 0; none on the others.
    printer: Option<io::Result<Printer<Stdout, R>>>,
}

impl<'a, R: Line> Printout<'a, R> {
    /// Prints the head on rank 0.
    pub(super) fn start(comm: &'a Communicator, format: Format, title: String, ranks: Vec<RankLine>) -> Self {
        let printer = (comm.rank() == 0).then(|| Printer::start(stdout(), format, title, ranks));
        Printout { comm, printer }
    }

    /// Whether rank 0 can print. All ranks ask, and hear the same.
    ///
    /// # Errors
    /// When the other ranks are not reached.
    pub(super) fn goes_on(&self) -> Result<bool, CollectiveError> {
        let can = self.printer.as_ref().is_none_or(Result::is_ok);
        agree(self.comm, u64::from(can)).map(|can| can == 1)
    }

    /// Prints one row on rank 0.
    pub(super) fn row(&mut self, row: R) {
        if let Some(Ok(printer)) = &mut self.printer
            && let Err(error) = printer.row(row)
        {
            self.printer = Some(Err(error));
        }
    }

    /// Prints the foot on rank 0.
    ///
    /// # Errors
    /// When something could not be printed; not when nobody reads any more (`| head`).
    pub(super) fn finish(self) -> Result<(), BenchError> {
        match self.printer.map_or(Ok(()), |printer| printer?.finish()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// What a run of these rows prints.
#[cfg(test)]
pub(super) fn printed<R: Line>(format: Format, rows: impl IntoIterator<Item = R>) -> String {
    let mut out = Vec::new();
    let ranks = vec![RankLine { rank: 0, host: "h".into(), pid: 1, why: "w".into() }];
    let mut printer = Printer::start(&mut out, format, "t".into(), ranks).unwrap();
    rows.into_iter().for_each(|row| printer.row(row).unwrap());
    printer.finish().unwrap();
    String::from_utf8(out).unwrap()
}
