// ./reader CASE... - runs the Delta rule on case files and compares with the results recorded in them. Needs nlohmann/json.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

using Numbers = std::vector<double>;
static const std::set<std::string> KNOWN = {"in/k", "in/v", "in/q", "in/retain", "in/step_size", "in/M0", "in/y_bar", "in/M_bar"};

static std::string verdict(const char* path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    uint64_t length;  // little-endian, as this machine is
    std::memcpy(&length, bytes.data(), 8);
    const auto header = nlohmann::json::parse(bytes.substr(8, length));
    const auto about = nlohmann::json::parse(header["__metadata__"]["atlas_ref"].get<std::string>());
    const auto convention = about.value("convention", nlohmann::json("spec"));
    bool known = about["rule"] == "delta" && (convention == "spec" || convention.empty()) && header.contains("out/y") && about.value("schedule", nlohmann::json()).is_null();
    for (const auto& [name, tensor] : header.items())
        if (name.rfind("in/", 0) == 0) known = known && KNOWN.count(name) && (tensor["dtype"] == "F64" || tensor["dtype"] == "F32");
    if (!known) return "NOT SUPPORTED";
    const auto numbers = [&](const char* name) {
        const size_t from = header[name]["data_offsets"][0], to = header[name]["data_offsets"][1];
        const char* at = bytes.data() + 8 + length + from;
        std::vector<float> narrow(header[name]["dtype"] == "F32" ? (to - from) / 4 : 0);
        Numbers wide(narrow.empty() ? (to - from) / 8 : 0);
        std::memcpy(narrow.empty() ? (void*)wide.data() : (void*)narrow.data(), at, to - from);
        return narrow.empty() ? wide : Numbers(narrow.begin(), narrow.end());
    };
    const Numbers k = numbers("in/k"), v = numbers("in/v"), q = numbers("in/q"), y = numbers("out/y");
    const Numbers retain = numbers("in/retain"), step = numbers("in/step_size");
    const auto& shape = header["in/k"]["shape"];
    const size_t n = shape.back(), T = shape[shape.size() - 2], m = header["in/v"]["shape"].back(), L = k.size() / (T * n);
    const auto gate = [&](const Numbers& g, size_t at, size_t row) { return g.size() == L * T ? g[at] : g[at * m + row]; };
    Numbers M = header.contains("in/M0") ? numbers("in/M0") : Numbers(L * m * n);
    double apart = 0, whole = 0;
    for (size_t at = 0; at < L * T; ++at)
        for (size_t i = 0; i < m; ++i) {
            double *row = &M[(at / T * m + i) * n], error = -v[at * m + i], read = 0;
            for (size_t j = 0; j < n; ++j) error += row[j] * k[at * n + j];
            for (size_t j = 0; j < n; ++j) row[j] = gate(retain, at, i) * row[j] - gate(step, at, i) * error * k[at * n + j];
            for (size_t j = 0; j < n; ++j) read += row[j] * q[at * n + j];
            apart += (read - y[at * m + i]) * (read - y[at * m + i]), whole += y[at * m + i] * y[at * m + i];
        }
    if (std::sqrt(apart) <= 1e-12 * std::sqrt(whole)) return "PASS";
    std::ostringstream error;
    error << "FAIL: out/y differs by " << std::setprecision(2) << std::sqrt(apart / whole);
    return error.str();
}

int main(int argc, char** argv) {
    bool failed = false;
    for (int i = 1; i < argc; ++i) {
        const std::string words = verdict(argv[i]);
        std::cout << words << "  " << argv[i] << "\n";
        failed = failed || words[0] == 'F';
    }
    return failed;
}
