// The Delta rule in C++17, asked through files:  ./delta CASE OUT
//
//     atlas-ref check cases/ --exec './delta {case} {out}'
//
// Exit code 0: done; 3: a case that is not carried out here; 1: anything else, said on standard error.
#include <cmath>
#include <cstdio>
#include <iostream>

#include "safetensors.hpp"

namespace {

using safetensors::File;
using safetensors::Tensor;

struct Unsupported : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The axes of specs/conventions.md that a Delta kernel has to know.
struct Settings {
    std::string gate = "retain", decay = "after_error", rate = "momentum", direction = "descent", value_sign = "minus", read = "after";
    bool transposed = false;
    double gradient_scale = 1, query_scale = 1;
};

std::string one_of(const json::Value& axes, const std::string& axis, const std::vector<std::string>& values) {
    const std::string found = axes.word(axis, values.front());
    for (const std::string& value : values)
        if (found == value) return found;
    throw Unsupported(axis + " " + found);
}

Settings settings(const json::Value& header, double d_in, double d_out) {
    if (header.word("rule", "") != "delta" || header.word("level", "projected") != "projected")
        throw Unsupported("rule " + header.word("rule", "") + ": only delta, projected");
    json::Value axes;
    axes.kind = json::Value::Kind::object;
    if (header.has("convention")) {
        const json::Value& given = header.at("convention");
        if (given.kind == json::Value::Kind::string) axes.object["preset"] = given;
        else axes = given;
    }
    Settings how;
    const std::string preset = axes.word("preset", "spec");
    const bool fla = preset == "fla-delta" || preset == "fla-gated-delta";
    if (!fla && preset != "spec") throw Unsupported("preset " + preset);
    how.transposed = one_of(axes, "layout", fla ? std::vector<std::string>{"transposed", "plain"} : std::vector<std::string>{"plain", "transposed"}) == "transposed";
    how.gate = one_of(axes, "gate", {"retain", "forget", "none"});
    how.decay = one_of(axes, "decay", preset == "fla-gated-delta" ? std::vector<std::string>{"before_error", "after_error"}
                                                                  : std::vector<std::string>{"after_error", "before_error"});
    how.rate = one_of(axes, "rate", {"momentum", "memory", "both", "none"});
    how.direction = one_of(axes, "direction", {"descent", "ascent"});
    how.value_sign = one_of(axes, "value_sign", {"minus", "plus"});
    how.read = one_of(axes, "read", {"after", "before"});
    for (const char* axis : {"q_norm", "k_norm"}) one_of(axes, axis, {"none"});
    one_of(axes, "reference", {"running"});
    if (axes.has("gradient_scale")) {
        const json::Value& scale = axes.at("gradient_scale");
        how.gradient_scale = scale.kind == json::Value::Kind::string ? 2.0 / d_out : scale.number;
    }
    const bool scaled = fla ? !axes.has("query_scale") || axes.at("query_scale").kind == json::Value::Kind::string
                            : axes.word("query_scale", "1") == "1/sqrt(d_in)";
    how.query_scale = scaled ? 1.0 / std::sqrt(d_in) : 1.0;
    return how;
}

// A gate of one head at one token: scalar, or one per output dimension.
class Gate {
public:
    Gate(const Tensor* tensor, bool rows, std::size_t d_out) : tensor_(tensor), width_(rows ? d_out : 1) {}
    double operator()(std::size_t row, std::size_t i, double otherwise) const {
        return tensor_ ? tensor_->values[row * width_ + (width_ > 1 ? i : 0)] : otherwise;
    }

private:
    const Tensor* tensor_;
    std::size_t width_;
};

const Tensor* find(const File& file, const std::string& name) {
    const auto place = file.tensors.find(name);
    return place == file.tensors.end() ? nullptr : &place->second;
}

const Tensor& need(const File& file, const std::string& name) {
    const Tensor* found = find(file, name);
    if (!found) throw std::runtime_error(name + " is missing");
    return *found;
}

// Every head after the other: M <- retain M - step (M k - v) k^T, y = M q. Real is the arithmetic of the case's format.
template <typename Real>
File run(const File& given, const Settings& how) {
    const Tensor &k = need(given, "in/k"), &v = need(given, "in/v"), &q = need(given, "in/q");
    const std::size_t d_in = k.shape.back(), d_out = v.shape.back(), tokens = k.shape[k.shape.size() - 2];
    const std::size_t heads = k.size() > 0 ? k.size() / (tokens * d_in) : 0;
    const Tensor *log_retain = find(given, "in/log_retain"), *retain = log_retain ? log_retain : find(given, "in/retain");
    const Tensor *step = find(given, "in/step_size"), *M0 = find(given, "in/M0");
    const Tensor *active = find(given, "in/active"), *reset = find(given, "in/reset");
    const Gate keep(retain, retain && retain->shape.size() == k.shape.size(), d_out);
    const Gate rate(step, step && step->shape.size() == k.shape.size(), d_out);

    File out;
    out.metadata = given.metadata;
    const std::string dtype = sizeof(Real) == 8 ? "F64" : "F32";
    Tensor y{dtype, v.shape, std::vector<double>(v.size())};
    std::vector<std::size_t> shape(k.shape.begin(), k.shape.end() - 2);
    shape.push_back(how.transposed ? d_in : d_out);
    shape.push_back(how.transposed ? d_out : d_in);
    Tensor last{dtype, shape, std::vector<double>(heads * d_out * d_in)};
    const auto place = [&](std::size_t head, std::size_t i, std::size_t j) {
        return head * d_out * d_in + (how.transposed ? j * d_out + i : i * d_in + j);
    };

    std::vector<Real> M(d_out * d_in), before(d_out * d_in);
    for (std::size_t head = 0; head < heads; ++head) {
        const auto restart = [&] {
            for (std::size_t i = 0; i < d_out; ++i)
                for (std::size_t j = 0; j < d_in; ++j) M[i * d_in + j] = M0 ? static_cast<Real>(M0->values[place(head, i, j)]) : Real(0);
        };
        restart();
        for (std::size_t t = 0; t < tokens; ++t) {
            const std::size_t row = head * tokens + t;
            if (reset && reset->values[t] != 0) restart();
            before = M;
            for (std::size_t i = 0; i < d_out && (!active || active->values[t] != 0); ++i) {
                Real r = static_cast<Real>(how.gate == "none" ? 1.0 : keep(row, i, 1.0));
                if (log_retain) r = std::exp(r);
                if (how.gate == "forget") r = Real(1) - r;
                Real h = static_cast<Real>(rate(row, i, 1.0));
                if (how.rate == "both") h *= h;
                Real error = static_cast<Real>(v.values[row * d_out + i]) * (how.value_sign == "plus" ? Real(1) : Real(-1));
                for (std::size_t j = 0; j < d_in; ++j)
                    error += (how.decay == "before_error" ? r : Real(1)) * M[i * d_in + j] * static_cast<Real>(k.values[row * d_in + j]);
                const Real change = static_cast<Real>(how.gradient_scale) * h * error * (how.direction == "ascent" ? Real(1) : Real(-1));
                for (std::size_t j = 0; j < d_in; ++j)
                    M[i * d_in + j] = r * M[i * d_in + j] + change * static_cast<Real>(k.values[row * d_in + j]);
            }
            const std::vector<Real>& seen = how.read == "before" ? before : M;
            for (std::size_t i = 0; i < d_out; ++i) {
                Real sum = 0;
                for (std::size_t j = 0; j < d_in; ++j)
                    sum += seen[i * d_in + j] * static_cast<Real>(how.query_scale) * static_cast<Real>(q.values[row * d_in + j]);
                y.values[row * d_out + i] = sum;
            }
        }
        for (std::size_t i = 0; i < d_out; ++i)
            for (std::size_t j = 0; j < d_in; ++j) last.values[place(head, i, j)] = M[i * d_in + j];
    }
    out.tensors["out/y"] = std::move(y);
    out.tensors["out/M"] = std::move(last);
    return out;
}

}  // namespace

int main(int count, char** words) {
    if (count != 3) {
        std::cerr << "usage: delta CASE OUT\n";
        return 2;
    }
    try {
        const File given = safetensors::read(words[1]);
        const json::Value header = json::parse(given.metadata);
        const auto width = [&](const char* name) { return find(given, name) ? static_cast<double>(need(given, name).shape.back()) : 1.0; };
        const Settings how = settings(header, width("in/k"), width("in/v"));
        const bool wide = need(given, "in/k").dtype == "F64";
        safetensors::write(words[2], wide ? run<double>(given, how) : run<float>(given, how));
    } catch (const Unsupported& reason) {
        std::cerr << reason.what() << "\n";
        return 3;
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
    return 0;
}
