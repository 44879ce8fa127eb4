"""What a model may call in us: the gateway's own tools, and what they give away.

The contract: a tool is a `core.agent.Spec` (what the model is told) and an answer, which is text for the model. An
answer is a function of the call's arguments and of what this caller may see; it never raises for what a model wrote,
and what the caller may not see is answered in the words for what does not exist. Values come from `core`; nothing here
knows the driver, an upstream or a route.

    skill_files    one SKILL.md: a Skill, or why not          skill_folders  a root of skills, walked without leaving it
    skills         the library, watched, swapped whole        skills_tool    load_skill
    results_tool   read_tool_result                        questions      ask_user, request_approval
"""
