#include "model.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace {

Tensor tensor(std::istringstream& line) {
    Tensor made;
    line >> made.name >> made.rows >> made.cols;
    return made;
}

template <class F>
Matrix broadcast(const Matrix& a, const Matrix& b, F f) {
    Matrix made;
    made.rows = std::max(a.rows, b.rows);
    made.cols = std::max(a.cols, b.cols);
    made.values.resize((size_t)made.rows * made.cols);
    for (int row = 0; row < made.rows; row++)
        for (int col = 0; col < made.cols; col++)
            made.values[(size_t)row * made.cols + col] = f(a.at(row, col), b.at(row, col));
    return made;
}

template <class F>
Matrix each(Matrix a, F f) {
    for (float& value : a.values) value = f(value);
    return a;
}

Matrix product(const Matrix& a, const Matrix& b, bool transposed) {
    Matrix made;
    made.rows = a.rows;
    made.cols = transposed ? b.rows : b.cols;
    made.values.resize((size_t)made.rows * made.cols);
    for (int row = 0; row < made.rows; row++)
        for (int col = 0; col < made.cols; col++) {
            float sum = 0;
            for (int inner = 0; inner < a.cols; inner++)
                sum += a.values[(size_t)row * a.cols + inner] *
                       (transposed ? b.values[(size_t)col * b.cols + inner]
                                   : b.values[(size_t)inner * b.cols + col]);
            made.values[(size_t)row * made.cols + col] = sum;
        }
    return made;
}

Matrix mean_of_rows(const Matrix& a) {
    Matrix made;
    made.rows = a.rows;
    made.cols = 1;
    for (int row = 0; row < a.rows; row++) {
        double sum = 0;
        for (int col = 0; col < a.cols; col++) sum += a.values[(size_t)row * a.cols + col];
        made.values.push_back((float)(sum / a.cols));
    }
    return made;
}

Matrix stacked(Matrix a, const Matrix& b) {
    a.rows += b.rows;
    a.values.insert(a.values.end(), b.values.begin(), b.values.end());
    return a;
}

Matrix slice_of_rows(const Matrix& a, double first, double last) {
    int start = first < 0 ? a.rows + (int)first : (int)first;
    int end = last >= a.rows ? a.rows : last < 0 ? a.rows + (int)last : (int)last;
    Matrix made;
    made.rows = end - start;
    made.cols = a.cols;
    made.values.assign(a.values.begin() + (long)start * a.cols, a.values.begin() + (long)end * a.cols);
    return made;
}

Matrix computed(const Node& node, const std::vector<const Matrix*>& in) {
    const std::string& op = node.op;
    if (op == "Mul") return broadcast(*in[0], *in[1], [](float a, float b) { return a * b; });
    if (op == "Add") return broadcast(*in[0], *in[1], [](float a, float b) { return a + b; });
    if (op == "Div") return broadcast(*in[0], *in[1], [](float a, float b) { return a / b; });
    if (op == "Sqrt") return each(*in[0], [](float a) { return std::sqrt(a); });
    if (op == "Tanh") return each(*in[0], [](float a) { return std::tanh(a); });
    if (op == "Sigmoid") return each(*in[0], [](float a) { return 1 / (1 + std::exp(-a)); });
    if (op == "ReduceMean") return mean_of_rows(*in[0]);
    if (op == "Concat") return stacked(*in[0], *in[1]);
    if (op == "Slice") return slice_of_rows(*in[0], in[1]->values[0], in[2]->values[0]);
    if (op == "MatMul") return product(*in[0], *in[1], false);
    if (op == "Gemm") return product(*in[0], *in[1], true);
    std::fprintf(stderr, "stand-in for librknnrt: no operator %s\n", op.c_str());
    std::abort();
}

}  // namespace

bool Model::read(std::istream& file) {
    std::string text;
    if (!file || !std::getline(file, text) || text != "RKNN-STANDIN 1") return false;
    std::vector<std::string> order;
    while (std::getline(file, text) && text != "end") {
        std::istringstream line(text);
        std::string word;
        line >> word;
        if (word == "target") {
            line >> target;
        } else if (word == "toolkit") {
            line >> toolkit;
        } else if (word == "lengths") {
            for (int length; line >> length;) lengths.push_back(length);
        } else if (word == "input") {
            inputs.push_back(tensor(line));
        } else if (word == "output") {
            outputs.push_back(tensor(line));
        } else if (word == "const") {
            std::string name;
            Matrix matrix;
            line >> name >> matrix.rows >> matrix.cols;
            matrix.values.resize((size_t)matrix.rows * matrix.cols);
            constants[name] = matrix;
            order.push_back(name);
        } else if (word == "node") {
            Node node;
            line >> node.op >> node.output;
            for (std::string name; line >> name;) node.inputs.push_back(name);
            nodes.push_back(node);
        } else {
            std::fprintf(stderr, "stand-in for librknnrt: no line begins with %s\n", word.c_str());
            return false;
        }
    }
    for (const std::string& name : order) {
        auto& values = constants[name].values;
        file.read((char*)values.data(), (std::streamsize)(4 * values.size()));
    }
    return text == "end" && !file.fail();
}

std::vector<Matrix> Model::run(const std::vector<Matrix>& given) const {
    std::map<std::string, Matrix> made;
    for (size_t index = 0; index < inputs.size(); index++) made[inputs[index].name] = given[index];
    for (const Node& node : nodes) {
        std::vector<const Matrix*> in;
        for (const std::string& name : node.inputs) {
            auto constant = constants.find(name);
            in.push_back(constant != constants.end() ? &constant->second : &made.at(name));
        }
        made[node.output] = computed(node, in);
    }
    std::vector<Matrix> results;
    for (const Tensor& output : outputs) results.push_back(made.at(output.name));
    return results;
}
