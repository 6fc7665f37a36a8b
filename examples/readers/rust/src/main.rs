//! reader CASE... - runs the Delta rule on case files and compares with the results recorded in them.
use serde_json::{from_slice, from_str, Value};

const KNOWN: [&str; 8] = ["in/k", "in/v", "in/q", "in/retain", "in/step_size", "in/M0", "in/y_bar", "in/M_bar"];

fn verdict(path: &str) -> String {
    let bytes = std::fs::read(path).expect(path);
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = from_slice(&bytes[8..start]).unwrap();
    let about: Value = from_str(header["__metadata__"]["atlas_ref"].as_str().unwrap()).unwrap();
    let convention = about.get("convention").cloned().unwrap_or_else(|| "spec".into());
    let spec = convention == "spec" || convention.as_object().map_or(false, |axes| axes.is_empty());
    let scheduled = about.get("schedule").map_or(false, |rest| !rest.is_null());
    let mut inputs = header.as_object().unwrap().iter().filter(|(name, _)| name.starts_with("in/"));
    let known = inputs.all(|(name, x)| KNOWN.contains(&name.as_str()) && (x["dtype"] == "F64" || x["dtype"] == "F32"));
    if about["rule"] != "delta" || !spec || scheduled || !known || header.get("out/y").is_none() {
        return "NOT SUPPORTED".into();
    }
    let numbers = |name: &str| -> Vec<f64> {
        let ends: Vec<usize> = header[name]["data_offsets"].as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as usize).collect();
        let data = &bytes[start + ends[0]..start + ends[1]];
        if header[name]["dtype"] == "F64" {
            return data.chunks(8).map(|x| f64::from_le_bytes(x.try_into().unwrap())).collect();
        }
        data.chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap()) as f64).collect()
    };
    let side = |name: &str, back: usize| -> usize {
        let shape = header[name]["shape"].as_array().unwrap();
        shape[shape.len() - back].as_u64().unwrap() as usize
    };
    let (n, m, tokens) = (side("in/k", 1), side("in/v", 1), side("in/k", 2));
    let (k, v, q, y) = (numbers("in/k"), numbers("in/v"), numbers("in/q"), numbers("out/y"));
    let (retain, step, rows) = (numbers("in/retain"), numbers("in/step_size"), k.len() / n);
    let gate = |g: &[f64], at: usize, i: usize| if g.len() == rows { g[at] } else { g[at * m + i] };
    let mut memory = if header.get("in/M0").is_some() { numbers("in/M0") } else { vec![0.0; rows / tokens * m * n] };
    let (mut apart, mut whole) = (0.0, 0.0);
    for at in 0..rows {
        let (key, query) = (&k[at * n..][..n], &q[at * n..][..n]);
        for i in 0..m {
            let row = &mut memory[(at / tokens * m + i) * n..][..n];
            let error = row.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() - v[at * m + i];
            for (entry, b) in row.iter_mut().zip(key) {
                *entry = gate(&retain, at, i) * *entry - gate(&step, at, i) * error * b;
            }
            let read: f64 = row.iter().zip(query).map(|(a, b)| a * b).sum();
            apart += (read - y[at * m + i]).powi(2);
            whole += y[at * m + i].powi(2);
        }
    }
    if apart.sqrt() <= 1e-12 * whole.sqrt() { "PASS".into() } else { format!("FAIL: out/y differs by {:.1e}", (apart / whole).sqrt()) }
}

fn main() {
    let mut failed = false;
    for path in std::env::args().skip(1) {
        let words = verdict(&path);
        println!("{}  {}", words, path);
        failed |= words.starts_with("FAIL");
    }
    std::process::exit(failed as i32);
}
