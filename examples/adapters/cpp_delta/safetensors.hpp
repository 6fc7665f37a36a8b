// Safetensors files in one header: eight bytes with the length of a JSON header, the header, the tensors' bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "json.hpp"

namespace safetensors {

// A tensor as numbers of any format, converted exactly to double.
struct Tensor {
    std::string dtype;
    std::vector<std::size_t> shape;
    std::vector<double> values;

    std::size_t size() const {
        std::size_t found = 1;
        for (const std::size_t axis : shape) found *= axis;
        return found;
    }
};

struct File {
    std::map<std::string, Tensor> tensors;
    std::string metadata;  // the JSON object of a case, as text
};

inline double from_bfloat16(std::uint16_t bits) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float found;
    std::memcpy(&found, &wide, 4);
    return found;
}

inline double from_float16(std::uint16_t bits) {
    const int exponent = (bits >> 10) & 31;
    const double fraction = bits & 1023;
    double found = exponent == 0 ? fraction / 16777216.0 : (1024.0 + fraction) / 1024.0;
    for (int i = 15; exponent > 0 && i < exponent; ++i) found *= 2.0;
    for (int i = exponent; exponent > 0 && i < 15; ++i) found /= 2.0;
    return bits & 0x8000 ? -found : found;
}

template <typename T>
T bytes_as(const char* from) {
    T found;
    std::memcpy(&found, from, sizeof(T));
    return found;
}

inline std::size_t width(const std::string& dtype) {
    static const std::map<std::string, std::size_t> known = {{"F64", 8}, {"F32", 4}, {"BF16", 2}, {"F16", 2}, {"U8", 1}, {"BOOL", 1}};
    if (!known.count(dtype)) throw std::runtime_error("dtype " + dtype + " is not read here");
    return known.at(dtype);
}

inline double number(const std::string& dtype, const char* from) {
    if (dtype == "F64") return bytes_as<double>(from);
    if (dtype == "F32") return bytes_as<float>(from);
    if (dtype == "BF16") return from_bfloat16(bytes_as<std::uint16_t>(from));
    if (dtype == "F16") return from_float16(bytes_as<std::uint16_t>(from));
    return bytes_as<std::uint8_t>(from);
}

inline File read(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) throw std::runtime_error(path + " cannot be read");
    const std::string data((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    if (data.size() < 8) throw std::runtime_error(path + " is shorter than a header");
    const auto length = bytes_as<std::uint64_t>(data.data());
    if (length > data.size() - 8) throw std::runtime_error(path + " is shorter than its header says");
    const std::string header = data.substr(8, length);
    const json::Value root = json::parse(header);

    File found;
    for (const auto& [name, entry] : root.object) {
        if (name == "__metadata__") {
            found.metadata = entry.at("atlas_ref").string;
            continue;
        }
        Tensor tensor;
        tensor.dtype = entry.at("dtype").string;
        for (const json::Value& axis : entry.at("shape").array) tensor.shape.push_back(static_cast<std::size_t>(axis.number));
        const auto begin = static_cast<std::size_t>(entry.at("data_offsets").array.at(0).number) + 8 + length;
        const std::size_t step = width(tensor.dtype);
        if (begin + tensor.size() * step > data.size()) throw std::runtime_error(name + " reaches beyond the end of " + path);
        for (std::size_t i = 0; i < tensor.size(); ++i) tensor.values.push_back(number(tensor.dtype, data.data() + begin + i * step));
        found.tensors[name] = std::move(tensor);
    }
    return found;
}

// Write tensors in F64 or F32, under a temporary name first, so that nobody ever reads half a file.
inline void write(const std::string& path, const File& file) {
    std::string header = "{\"__metadata__\":{\"atlas_ref\":" + json::quoted(file.metadata) + "}", body;
    for (const auto& [name, tensor] : file.tensors) {
        const std::size_t begin = body.size();
        for (const double value : tensor.values) {
            const float narrow = static_cast<float>(value);
            if (tensor.dtype == "F64") body.append(reinterpret_cast<const char*>(&value), 8);
            else body.append(reinterpret_cast<const char*>(&narrow), 4);
        }
        header += "," + json::quoted(name) + ":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
        for (std::size_t i = 0; i < tensor.shape.size(); ++i) header += (i ? "," : "") + std::to_string(tensor.shape[i]);
        header += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(body.size()) + "]}";
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');  // tensors begin at a multiple of 8
    const std::uint64_t length = header.size();
    const std::string temporary = path + ".part";
    std::ofstream stream(temporary, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(&length), 8);
    stream << header << body;
    stream.close();
    if (!stream || std::rename(temporary.c_str(), path.c_str()) != 0) throw std::runtime_error(path + " cannot be written");
}

}  // namespace safetensors
