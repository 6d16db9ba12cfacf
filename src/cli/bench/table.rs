//! What a benchmark prints: the nccl-tests table, CSV or JSON, a row per size.

use super::sizes;
use serde::Serialize;
use std::io::{self, Write};

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

/// One measured size. Times in microseconds, bandwidths in GB/s (1e9 bytes).
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub collective: &'static str,
    pub ranks: u32,
    pub size_bytes: u64,
    pub count: u64,
    pub dtype: String,
    pub redop: String,
    /// -1 where the collective has no root.
    pub root: i64,
    pub iterations: u64,
    /// Mean over the iterations.
    pub time_us: f64,
    pub algbw_gb_s: f64,
    pub busbw_gb_s: f64,
    /// Elements that were not what they must be; absent when checking is off.
    pub wrong: Option<u64>,
    pub min_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub algorithm: String,
    pub slice_bytes: u64,
    pub transport: String,
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
pub(super) struct Printer<W: Write> {
    out: W,
    format: Format,
    title: String,
    ranks: Vec<RankLine>,
    rows: Vec<Row>,
}

const HEAD: [&str; 2] = [
    "#       size         count    type   redop   root      time   algbw   busbw  #wrong       p50       p99  algo       slice  transport",
    "#        (B)    (elements)                             (us)  (GB/s)  (GB/s)              (us)      (us)               (B)",
];

impl<W: Write> Printer<W> {
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
                writeln!(
                    out,
                    "# time is the mean of the iterations; algbw and busbw are by the median, p50"
                )?;
                HEAD.iter().try_for_each(|line| writeln!(out, "{line}"))?;
            }
            Format::Csv => writeln!(
                out,
                "collective,ranks,size_bytes,count,dtype,redop,root,iterations,time_us,algbw_gb_s,busbw_gb_s,wrong,\
                 min_us,p50_us,p99_us,algorithm,slice_bytes,transport"
            )?,
            Format::Json => {}
        }
        out.flush()?;
        Ok(Printer { out, format, title, ranks, rows: Vec::new() })
    }

    /// Prints one row.
    ///
    /// # Errors
    /// When the output is closed.
    pub(super) fn row(&mut self, r: Row) -> io::Result<()> {
        let wrong = r.wrong.map_or("N/A".to_owned(), |w| w.to_string());
        match self.format {
            Format::Table => writeln!(
                self.out,
                "{:>12}  {:>12}  {:>6}  {:>6}  {:>5}  {:>8}  {:>6.2}  {:>6.2}  {:>6}  {:>8}  {:>8}  {:<9}  {:>5}  {}",
                r.size_bytes,
                r.count,
                r.dtype,
                r.redop,
                r.root,
                time(r.time_us),
                r.algbw_gb_s,
                r.busbw_gb_s,
                wrong,
                time(r.p50_us),
                time(r.p99_us),
                r.algorithm,
                sizes::show(r.slice_bytes),
                r.transport,
            )?,
            Format::Csv => writeln!(
                self.out,
                "{},{},{},{},{},{},{},{},{:.3},{:.4},{:.4},{},{:.3},{:.3},{:.3},{},{},{}",
                r.collective,
                r.ranks,
                r.size_bytes,
                r.count,
                r.dtype,
                r.redop,
                r.root,
                r.iterations,
                r.time_us,
                r.algbw_gb_s,
                r.busbw_gb_s,
                wrong,
                r.min_us,
                r.p50_us,
                r.p99_us,
                r.algorithm,
                r.slice_bytes,
                r.transport,
            )?,
            Format::Json => {}
        }
        self.out.flush()?;
        self.rows.push(r);
        Ok(())
    }

    /// Prints the foot, and returns how many elements were wrong in all.
    ///
    /// # Errors
    /// When the output is closed.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        let wrong = self.rows.iter().filter_map(|r| r.wrong).sum();
        let checked = self.rows.iter().all(|r| r.wrong.is_some());
        let mean = self.rows.iter().map(|r| r.busbw_gb_s).sum::<f64>() / self.rows.len().max(1) as f64;
        match self.format {
            Format::Table => {
                let verdict = match (checked, wrong) {
                    (false, _) => "not checked (-c 0)".to_owned(),
                    (true, 0) => "0 OK".to_owned(),
                    (true, n) => format!("{n} FAILED"),
                };
                writeln!(self.out, "# Out of bounds values : {verdict}")?;
                writeln!(self.out, "# Avg bus bandwidth    : {mean:.4}")?;
            }
            Format::Csv => {}
            Format::Json => {
                let whole = serde_json::json!({ "title": self.title, "ranks": self.ranks, "rows": self.rows, "wrong": wrong });
                writeln!(self.out, "{whole:#}")?;
            }
        }
        self.out.flush()?;
        Ok(wrong)
    }
}

/// Microseconds with as many digits as mean something.
pub(super) fn time(us: f64) -> String {
    match us {
        us if us < 100.0 => format!("{us:.2}"),
        us if us < 10_000.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

/// The value below which `share` (0 to 1) of the sorted times lie; 0 for none.
pub(super) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(wrong: Option<u64>) -> Row {
        Row {
            collective: "all_reduce",
            ranks: 4,
            size_bytes: 8,
            count: 2,
            dtype: "f32".into(),
            redop: "sum".into(),
            root: -1,
            iterations: 20,
            time_us: 7.123,
            algbw_gb_s: 0.0,
            busbw_gb_s: 0.0,
            wrong,
            min_us: 6.0,
            p50_us: 7.0,
            p99_us: 12_345.6,
            algorithm: "doubling".into(),
            slice_bytes: 262_144,
            transport: "uring".into(),
        }
    }

    fn printed(format: Format, wrong: Option<u64>) -> (String, u64) {
        let mut out = Vec::new();
        let ranks = vec![RankLine { rank: 0, host: "h".into(), pid: 1, why: "w".into() }];
        let mut p = Printer::start(&mut out, format, "t".into(), ranks).unwrap();
        p.row(row(wrong)).unwrap();
        let total = p.finish().unwrap();
        (String::from_utf8(out).unwrap(), total)
    }

    #[test]
    fn wrong_elements_are_never_hidden() {
        let (text, total) = printed(Format::Table, Some(3));
        assert!(text.contains("3 FAILED") && total == 3);
        assert!(printed(Format::Table, Some(0)).0.contains("0 OK"));
        assert!(printed(Format::Table, None).0.contains("not checked"));
        assert!(printed(Format::Csv, Some(3)).0.lines().nth(1).unwrap().contains(",3,"));
        let json: serde_json::Value = serde_json::from_str(&printed(Format::Json, Some(3)).0).unwrap();
        assert_eq!((json["wrong"].as_u64(), json["rows"][0]["wrong"].as_u64()), (Some(3), Some(3)));
    }

    #[test]
    fn csv_rows_have_the_heads_columns() {
        let text = printed(Format::Csv, Some(0)).0;
        let columns: Vec<usize> = text.lines().map(|l| l.split(',').count()).collect();
        assert_eq!(columns, [18, 18]);
    }

    #[test]
    fn percentiles_of_few_and_none() {
        assert_eq!(percentile(&[], 0.5), 0.0);
        assert_eq!(percentile(&[4.0], 0.99), 4.0);
        let hundred: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!((percentile(&hundred, 0.5), percentile(&hundred, 0.99)), (50.0, 99.0));
    }
}
