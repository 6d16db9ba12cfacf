//! A row of a collective's benchmark: the columns of nccl-tests, and what they do not have.

use super::printer::{Line, wrong};
use super::sizes;
use serde::Serialize;

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

impl Line for Row {
    const NOTE: &'static str = "time is the mean of the iterations; algbw and busbw are by the median, p50";
    const HEAD: [&'static str; 2] = [
        "#       size         count    type   redop   root      time   algbw   busbw  #wrong       p50       p99  algo       slice  transport",
        "#        (B)    (elements)                             (us)  (GB/s)  (GB/s)              (us)      (us)               (B)",
    ];
    const CSV_HEAD: &'static str = "collective,ranks,size_bytes,count,dtype,redop,root,iterations,time_us,algbw_gb_s,busbw_gb_s,wrong,min_us,p50_us,\
         p99_us,algorithm,slice_bytes,transport";
    const CHECKED: &'static str = "Out of bounds values";

    fn table(&self) -> String {
        format!(
            "{:>12}  {:>12}  {:>6}  {:>6}  {:>5}  {:>8}  {:>6.2}  {:>6.2}  {:>6}  {:>8}  {:>8}  {:<9}  {:>5}  {}",
            self.size_bytes,
            self.count,
            self.dtype,
            self.redop,
            self.root,
            time(self.time_us),
            self.algbw_gb_s,
            self.busbw_gb_s,
            wrong(self.wrong),
            time(self.p50_us),
            time(self.p99_us),
            self.algorithm,
            sizes::show(self.slice_bytes),
            self.transport,
        )
    }

    fn csv(&self) -> String {
        format!(
            "{},{},{},{},{},{},{},{},{:.3},{:.4},{:.4},{},{:.3},{:.3},{:.3},{},{},{}",
            self.collective,
            self.ranks,
            self.size_bytes,
            self.count,
            self.dtype,
            self.redop,
            self.root,
            self.iterations,
            self.time_us,
            self.algbw_gb_s,
            self.busbw_gb_s,
            wrong(self.wrong),
            self.min_us,
            self.p50_us,
            self.p99_us,
            self.algorithm,
            self.slice_bytes,
            self.transport,
        )
    }

    fn wrong(&self) -> Option<u64> {
        self.wrong
    }

    fn foot(rows: &[Row]) -> Option<String> {
        let mean = rows.iter().map(|row| row.busbw_gb_s).sum::<f64>() / rows.len().max(1) as f64;
        Some(format!("Avg bus bandwidth    : {mean:.4}"))
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
    use super::super::printer::{Format, printed};
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

    #[test]
    fn wrong_elements_are_never_hidden() {
        let printed = |format, wrong| printed(format, [row(wrong)]);
        assert!(printed(Format::Table, Some(3)).contains("3 FAILED"));
        assert!(printed(Format::Table, Some(0)).contains("0 OK"));
        assert!(printed(Format::Table, None).contains("not checked"));
        assert!(printed(Format::Csv, Some(3)).lines().nth(1).unwrap().contains(",3,"));
        let json: serde_json::Value = serde_json::from_str(&printed(Format::Json, Some(3))).unwrap();
        assert_eq!((json["wrong"].as_u64(), json["rows"][0]["wrong"].as_u64()), (Some(3), Some(3)));
    }

    #[test]
    fn csv_rows_have_the_heads_columns() {
        let text = printed(Format::Csv, [row(Some(0))]);
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
