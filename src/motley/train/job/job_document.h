// What a job file may say, made from the table of its options: the page docs/job.md and the JSON Schema
// docs/schema/job.schema.json.
#pragma once

#include <string>

namespace motley::train {

// The job's keys with defaults and help as Markdown, for docs/job.md.
std::string document_job();

// The same keys as a JSON Schema of the YAML file (nested as the dots say), for docs/schema/job.schema.json. Values
// that a unit may follow, such as times and sizes, may be numbers or texts.
std::string job_schema();

}  // namespace motley::train
