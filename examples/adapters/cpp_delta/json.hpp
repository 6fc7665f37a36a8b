// A JSON reader in one header: what a safetensors header and a case's metadata need, and nothing more.
#pragma once

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace json {

struct Value {
    enum class Kind { null, boolean, number, string, array, object } kind = Kind::null;
    bool boolean = false;
    double number = 0;
    std::string string;
    std::vector<Value> array;
    std::map<std::string, Value> object;

    bool has(const std::string& key) const { return kind == Kind::object && object.count(key) > 0; }
    const Value& at(const std::string& key) const {
        if (!has(key)) throw std::runtime_error("key " + key + " is missing");
        return object.at(key);
    }
    // The string at a key, or what stands in for it.
    std::string word(const std::string& key, const std::string& otherwise) const {
        return has(key) && object.at(key).kind == Kind::string ? object.at(key).string : otherwise;
    }
};

class Reader {
public:
    explicit Reader(const std::string& text) : text_(text) {}

    Value document() {
        Value found = value(0);
        blanks();
        if (place_ != text_.size()) fail("more than one value");
        return found;
    }

private:
    const std::string& text_;
    std::size_t place_ = 0;

    [[noreturn]] void fail(const std::string& what) const {
        throw std::runtime_error("not JSON: " + what + " at byte " + std::to_string(place_));
    }
    void blanks() {
        while (place_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[place_]))) ++place_;
    }
    char peek() {
        blanks();
        return place_ < text_.size() ? text_[place_] : '\0';
    }
    void expect(char wanted) {
        if (peek() != wanted) fail(std::string("expected ") + wanted);
        ++place_;
    }
    bool accept(const std::string& word) {
        if (text_.compare(place_, word.size(), word) != 0) return false;
        place_ += word.size();
        return true;
    }

    Value value(int depth) {
        if (depth > 100) fail("nested too deep");
        Value found;
        const char next = peek();
        if (next == '{') return object(depth);
        if (next == '[') return array(depth);
        if (next == '"') {
            found.kind = Value::Kind::string;
            found.string = string();
        } else if (accept("true") || accept("false")) {
            found.kind = Value::Kind::boolean;
            found.boolean = next == 't';
        } else if (!accept("null")) {
            found.kind = Value::Kind::number;
            found.number = number();
        }
        return found;
    }

    Value object(int depth) {
        Value found;
        found.kind = Value::Kind::object;
        expect('{');
        while (peek() != '}') {
            if (!found.object.empty()) expect(',');
            if (peek() != '"') fail("expected a key");
            std::string key = string();
            expect(':');
            found.object[std::move(key)] = value(depth + 1);
        }
        expect('}');
        return found;
    }

    Value array(int depth) {
        Value found;
        found.kind = Value::Kind::array;
        expect('[');
        while (peek() != ']') {
            if (!found.array.empty()) expect(',');
            found.array.push_back(value(depth + 1));
        }
        expect(']');
        return found;
    }

    double number() {
        const char* begin = text_.c_str() + place_;
        char* end = nullptr;
        const double found = std::strtod(begin, &end);
        if (end == begin) fail("expected a value");
        place_ += static_cast<std::size_t>(end - begin);
        return found;
    }

    unsigned hex() {
        if (place_ + 4 > text_.size()) fail("a short escape");
        const unsigned found = static_cast<unsigned>(std::stoul(text_.substr(place_, 4), nullptr, 16));
        place_ += 4;
        return found;
    }

    std::string string() {
        std::string found;
        for (++place_;; ++place_) {
            if (place_ >= text_.size()) fail("a string without end");
            const char c = text_[place_];
            if (c == '"') break;
            if (c != '\\') {
                found += c;
                continue;
            }
            if (++place_ >= text_.size()) fail("a string without end");
            const std::string plain = "\"\\/bfnrt", means = "\"\\/\b\f\n\r\t";
            const std::size_t which = plain.find(text_[place_]);
            if (which != std::string::npos) {
                found += means[which];
            } else if (text_[place_] == 'u') {
                ++place_;
                unsigned code = hex();
                if (code >= 0xD800 && code < 0xDC00 && text_.compare(place_, 2, "\\u") == 0) {
                    place_ += 2;
                    code = 0x10000 + ((code - 0xD800) << 10) + (hex() - 0xDC00);
                }
                --place_;
                utf8(found, code);
            } else {
                fail("an unknown escape");
            }
        }
        ++place_;
        return found;
    }

    static void utf8(std::string& to, unsigned code) {
        if (code < 0x80) {
            to += static_cast<char>(code);
            return;
        }
        const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        const unsigned lead[] = {0, 0xC0, 0xE0, 0xF0};
        to += static_cast<char>(lead[more] | (code >> (6 * more)));
        for (int i = more - 1; i >= 0; --i) to += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
    }
};

inline Value parse(const std::string& text) { return Reader(text).document(); }

// The text as a JSON string, quotation marks included.
inline std::string quoted(const std::string& text) {
    static const char digits[] = "0123456789abcdef";
    std::string found = "\"";
    for (const char c : text) {
        const auto code = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            found += '\\';
            found += c;
        } else if (code < 0x20) {
            found += std::string("\\u00") + digits[code >> 4] + digits[code & 15];
        } else {
            found += c;
        }
    }
    return found + '"';
}

}  // namespace json
