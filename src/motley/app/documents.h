// Documents that whoever asks has in memory instead of in files: profiles, plans, clusters and traces.
#pragma once

#include <map>
#include <string>

namespace motley::app {

// Contents by the names that stand in place of paths, in requests and in messages.
using Documents = std::map<std::string, std::string>;

// What `parse` makes of the document of this name, or `read` of the file.
template <class Parse, class Read>
auto read_document(const Documents& documents, const std::string& name, Parse parse, Read read) {
  const auto document = documents.find(name);
  return document != documents.end() ? parse(document->second, name) : read(name);
}

}  // namespace motley::app
